package text

import (
	"encoding/csv"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSheet: readers get rounded numbers with units, programs exact ones and as many fields
// in every line, whatever names hold.
func TestSheet(t *testing.T) {
	third, tiny := 1.0/3, math.SmallestNonzeroFloat64
	s := NewSheet("name", ">bytes", ">count", ">value", ">share")
	s.Add(Foreign("a.weight"), Size(1536), Whole(1234567), Real(&third), Share(1, 3))
	s.Add(Foreign("b|\t\"\n\x1b,"), Size(1), Whole(0), Real(nil), Share(0, 0))
	s.Add(Plain("é"), Size(0), Whole(-1), Real(&tiny), Share(2, 2))
	for form, want := range map[Form]string{
		AsTable: "NAME                BYTES      COUNT       VALUE     SHARE\n" +
			"a.weight         1.50 KiB  1,234,567      0.3333   33.33 %\n" +
			`"b|\t\"\n\x1b,"       1 B          0           -         -` + "\n" +
			"é                     0 B         -1  4.941e-324  100.00 %\n",
		TSV: "name\tbytes\tcount\tvalue\tshare\n" +
			"a.weight\t1536\t1234567\t0.3333333333333333\t0.3333333333333333\n" +
			`b|\t"\n\x1b,` + "\t1\t0\t\t\n" +
			"é\t0\t-1\t5e-324\t1\n",
		Markdown: "| name | bytes | count | value | share |\n|---|---:|---:|---:|---:|\n" +
			"| a.weight | 1.50 KiB | 1,234,567 | 0.3333 | 33.33 % |\n" +
			`| "b\|\t\"\n\x1b," | 1 B | 0 | - | - |` + "\n" +
			"| é | 0 B | -1 | 4.941e-324 | 100.00 % |\n",
	} {
		var out strings.Builder
		require.NoError(t, s.WriteAs(&out, form))
		assert.Equal(t, want, out.String())
	}
	var out strings.Builder
	require.NoError(t, s.WriteAs(&out, CSV))
	records, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	require.NoError(t, err)
	assert.Equal(t, []string{`b|\t"\n\x1b,`, "1", "0", "", ""}, records[2])
	assert.Panics(t, func() { s.Add(Plain("too few")) })
}

// TestTablesFit: a table on a narrow screen leaves out its last columns, never the first, and names them.
func TestTablesFit(t *testing.T) {
	s := NewSheet("name", ">bytes", ">é", "last")
	s.Row("model.layers.1", 12, 3, "word")
	for columns, want := range map[int]string{
		0:  "NAME            BYTES  É  LAST\nmodel.layers.1     12  3  word\n",
		30: "NAME            BYTES  É  LAST\nmodel.layers.1     12  3  word\n",
		29: "NAME            BYTES  É\nmodel.layers.1     12  3\n1 column without room: last; --wide shows all\n",
		24: "NAME            BYTES  É\nmodel.layers.1     12  3\n1 column without room: last; --wide shows all\n",
		3:  "NAME\nmodel.layers.1\n3 columns without room: bytes, é, last; --wide shows all\n",
	} {
		var out strings.Builder
		require.NoError(t, s.WriteAs(Screen{&out, columns}, AsTable))
		assert.Equal(t, want, out.String(), columns)
	}
	var out strings.Builder
	require.NoError(t, s.WriteAs(Screen{&out, 3}, TSV))
	assert.Contains(t, out.String(), "last")
}

func TestSpans(t *testing.T) {
	s, err := ParseSpans("7,0-3, 5-5", "layers")
	require.NoError(t, err)
	assert.Equal(t, "7,0-3,5", s.String())
	present := map[int]bool{0: true, 1: true, 3: true, 5: true, 6: true}
	assert.EqualError(t, s.Check("the model", "layers", present), "layers 7,0-3,5: 2, 7 not there: the model has 0, 1, 3, 5, 6")
	assert.ErrorContains(t, s.Check("the model", "layers", nil), "the model has none")
	assert.NoError(t, s.Check("the model", "layers", map[int]bool{0: true, 1: true, 2: true, 3: true, 5: true, 7: true}))
	assert.True(t, s.Has(3) && s.Has(7) && !s.Has(4))
	assert.True(t, Spans(nil).Has(9))
	_, err = ParseSpans("3-1", "experts")
	assert.EqualError(t, err, "not experts such as 0-3,7")
}
