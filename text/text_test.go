package text

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNumbers(t *testing.T) {
	assert.Equal(t, "0", Grouped(0))
	assert.Equal(t, "999", Grouped(999))
	assert.Equal(t, "-1,000", Grouped(-1000))
	assert.Equal(t, "-999", Grouped(-999))
	assert.Equal(t, "16,375,728,128", Grouped(int64(16_375_728_128)))
	assert.Equal(t, "23,726,045,489,546,400,000", GroupDigits("23726045489546400000"))
	assert.Equal(t, "1 shard", Plural(1, "shard"))
	assert.Equal(t, "0 shards", Plural(0, "shard"))
	assert.Equal(t, "shard", Noun(1, "shard"))
	assert.Equal(t, "5,466 tensors", Plural(int64(5466), "tensor"))
	assert.Equal(t, "1023 B", Bytes(1023))
	assert.Equal(t, "1.00 KiB", Bytes(1024))
	assert.Equal(t, "30.50 GiB", Bytes(32_751_456_256))
	assert.Equal(t, "8.00 EiB", Bytes(1<<63-1))
	assert.Equal(t, "1 byte", ExactBytes(1))
	assert.Equal(t, "1.00 KiB (1,024 bytes)", ExactBytes(1024))
	assert.Equal(t, "5.29 MiB (5,551,376 bytes)", ExactBytes(5_551_376))
	assert.Equal(t, "999 FLOP", FLOP(999))
	assert.Equal(t, "5.24 GFLOP", FLOP(5_237_637_120))
	assert.Equal(t, "1000000.00 EFLOP", FLOP(1e24))
	assert.Equal(t, "17.27 %", Percent(1727, 10000))
	assert.Equal(t, "-", Percent(0, 0))
}

func TestRanges(t *testing.T) {
	for want, n := range map[string][]int{
		"":                      nil,
		"3":                     {3},
		"4, 5":                  {4, 5},
		"4-6":                   {4, 5, 6},
		"0-3, 7":                {0, 1, 2, 3, 7},
		"0, 2-5, 9, 11, 12":     {0, 2, 3, 4, 5, 9, 11, 12},
		"-2-0, 1000000-1000002": {-2, -1, 0, 1000000, 1000001, 1000002},
	} {
		assert.Equal(t, want, Ranges(n))
	}
}

func TestSome(t *testing.T) {
	assert.Equal(t, "a; b", Some([]string{"a", "b"}, 2, "; "))
	assert.Equal(t, "1, 2, and 1 more", Some([]int{1, 2, 3}, 2, ", "))
	assert.Empty(t, Some([]int{}, 2, ", "))
}

func TestRunsStop(t *testing.T) {
	for first, last := range Runs([]int{1, 2, 5}) {
		require.Equal(t, [2]int{1, 2}, [2]int{first, last})
		break
	}
}

// TestNamesAreTotallyOrdered has names whose components are numbers, text and both.
func TestNamesAreTotallyOrdered(t *testing.T) {
	ordered := []string{"0", "0.", "0.a", "9", "9.10", "9.a", "10", "10.9", "99999999999999999999", "100000000000000000000",
		"", ".0", ".", "+1", "-1", "010", "1a", "9a", "a", "a.0", "a.2", "a.10", "a.10.", "a.10.b", "a.b", "aa", "é"}
	for i, a := range ordered {
		for j, b := range ordered {
			c := CompareNames(a, b)
			assert.Equal(t, i < j, c < 0, "%q %q", a, b)
			assert.Equal(t, i > j, c > 0, "%q %q", a, b)
		}
	}
	names := []string{"model.layers.10.x", "lm_head.weight", "model.layers.9.y"}
	slices.SortFunc(names, CompareNames)
	assert.Equal(t, []string{"lm_head.weight", "model.layers.9.y", "model.layers.10.x"}, names)
}

// TestWrap cuts between words, below what a line's name names, and neither words nor commands.
func TestWrap(t *testing.T) {
	for line, want := range map[string][]string{
		"cause  one two three":               {"cause  one two", "       three"},
		"a name  one two three":              {"a name  one two", "  three"},
		"    one two three four":             {"    one two", "    three four"},
		"one two three four":                 {"one two three", "four"},
		"at  1663199.92xxxxxxxx y":           {"at  1663199.92xxxxxxxx", "    y"},
		"next   dsmoe diff ORIGINAL":         {"next   dsmoe diff ORIGINAL"},
		"a long name, longer  one two three": {"a long name,", "  longer  one", "  two three"},
		"ÄÖÜ    ÄÖÜ ÄÖÜ":                     {"ÄÖÜ    ÄÖÜ ÄÖÜ"},
		"":                                   {""},
	} {
		assert.Equal(t, want, Wrap(line, 15), line)
		assert.Equal(t, []string{line}, Wrap(line, 0))
	}
}

func TestTable(t *testing.T) {
	x := Table{Align: "lrl", Indent: "> "}
	x.Add("a", "1", "é")
	x.Add("bbb", "1000")
	x.Add()
	x.Add("", "", "last")
	var out strings.Builder
	require.NoError(t, x.WriteText(&out))
	assert.Equal(t, "> a       1  é\n> bbb  1000\n>\n>            last\n", out.String())
	assert.Panics(t, func() { x.Add("1", "2", "3", "4") })
}
