package diff

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// layer is a layer of experts: which expert stands under each number, whether its gate_proj
// and up_proj are exchanged, and which row of the router belongs to it. Weights are larger
// than what a fingerprint is of.
type layer struct {
	experts   []int
	rows      []int
	exchanged map[int]bool // by number
	dtype     tensor.DType
	last      float32 // added to the last value of every expert
}

func (l layer) memory(t *testing.T) *memory {
	const rows, cols = 3, sampled/2 + 7
	m := new(memory)
	matrix := func(expert, part int) tensor.Tensor {
		values := make([]float32, rows*cols)
		for i := range values {
			values[i] = float32((i*7+expert*31+part*17)%101)/64 + 0.001
		}
		values[len(values)-1] += l.last
		return tensortest.New(t, l.dtype, []int{rows, cols}, values)
	}
	for number, expert := range l.experts {
		for part, name := range []string{"gate_proj", "up_proj", "down_proj"} {
			if l.exchanged[number] && part < 2 {
				part = 1 - part
			}
			m.add(fmt.Sprintf("model.layers.1.mlp.experts.%d.%s.weight", number, name), matrix(expert, part))
		}
	}
	var gate, bias []float32
	for _, row := range l.rows {
		gate, bias = append(gate, float32(row), 1), append(bias, float32(row))
	}
	m.add("model.layers.1.mlp.gate.weight", tensortest.New(t, tensor.F32, []int{len(l.rows), 2}, gate))
	return m.add("model.layers.1.mlp.gate.e_score_correction_bias", tensortest.Vector(t, tensor.F32, bias...))
}

var ordered = layer{experts: []int{0, 1, 2, 3}, rows: []int{0, 1, 2, 3}, dtype: tensor.F32}

// rearrangedOf compares ordered with l.
func rearrangedOf(t *testing.T, l layer) (*Report, string) {
	t.Helper()
	a, b := ordered.memory(t).side(), l.memory(t).side()
	r, err := Compare(t.Context(), a, b, Options{})
	require.NoError(t, err)
	var lines []string
	for _, x := range r.Rearranged {
		lines = append(lines, x.lines()...)
	}
	return r, strings.Join(lines, "\n")
}

func TestRearranged(t *testing.T) {
	for name, c := range map[string]struct {
		b    layer
		want string
	}{
		"nothing": {ordered, ""},
		"experts and rows": {layer{experts: []int{2, 0, 1, 3}, rows: []int{2, 0, 1, 3}, dtype: tensor.F32},
			"model.layers.1.mlp.experts: 3 experts renumbered: 0 is 1, 1 is 2, 2 is 0 in B; the router's rows are too: this alone changes nothing"},
		"experts alone": {layer{experts: []int{1, 0, 2, 3}, rows: []int{0, 1, 2, 3}, dtype: tensor.F32},
			"model.layers.1.mlp.experts: 2 experts renumbered: 0 is 1, 1 is 0 in B; the router's rows are not: tokens reach other experts"},
		"other rows": {layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 7, 2, 3}, dtype: tensor.F32},
			"model.layers.1.mlp.experts: 2 experts renumbered: 0 is 1, 1 is 0 in B; the router's rows are others"},
		"cast": {layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.BF16},
			"model.layers.1.mlp.experts: 2 experts renumbered: 0 is 1, 1 is 0 in B; the router's rows are too: this alone changes nothing"},
		"exchanged": {layer{experts: []int{0, 1, 2, 3}, rows: []int{0, 1, 2, 3}, dtype: tensor.F32, exchanged: map[int]bool{0: true, 1: true, 2: true}},
			"model.layers.1.mlp.experts.{0..2}: gate_proj and up_proj are exchanged in B"},
		"both": {layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.F16, exchanged: map[int]bool{1: true}},
			"model.layers.1.mlp.experts: 2 experts renumbered: 0 is 1, 1 is 0 in B; the router's rows are too: this alone changes nothing\n" +
				"model.layers.1.mlp.experts.0: gate_proj and up_proj are exchanged in B"},
		"alike at first": {layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.F32, last: 1},
			"model.layers.1.mlp.gate: 2 rows renumbered: 0 is 1, 1 is 0 in B; the experts of these numbers differ"},
		"rows alone": {layer{experts: []int{0, 1, 2, 3}, rows: []int{2, 0, 1, 3}, dtype: tensor.F32},
			"model.layers.1.mlp.gate: 3 rows renumbered: 0 is 1, 1 is 2, 2 is 0 in B; the experts are not: tokens reach other experts"},
		"rows alone, experts exchanged": {layer{experts: []int{0, 1, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.BF16, exchanged: map[int]bool{3: true}},
			"model.layers.1.mlp.gate: 2 rows renumbered: 0 is 1, 1 is 0 in B; the experts are not: tokens reach other experts\n" +
				"model.layers.1.mlp.experts.3: gate_proj and up_proj are exchanged in B"},
		"rows, of experts that differ": {layer{experts: []int{0, 1, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.F32, last: 1},
			"model.layers.1.mlp.gate: 2 rows renumbered: 0 is 1, 1 is 0 in B; the experts of these numbers differ"},
		"some rows":          {layer{experts: []int{0, 1, 2, 3}, rows: []int{1, 0, 7, 3}, dtype: tensor.F32}, ""},
		"a row lost":         {layer{experts: []int{0, 1, 2, 3}, rows: []int{1, 0, 2}, dtype: tensor.F32}, ""},
		"one row, other row": {layer{experts: []int{0, 1, 2, 3}, rows: []int{0, 0, 2, 3}, dtype: tensor.F32}, ""},
		"the same twice": {layer{experts: []int{1, 1, 0, 3}, rows: []int{1, 1, 0, 3}, dtype: tensor.F32},
			"model.layers.1.mlp.experts: 1 expert renumbered: 0 is 2 in B; the router's rows are too: this alone changes nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			r, lines := rearrangedOf(t, c.b)
			assert.Equal(t, c.want, lines)
			assert.Equal(t, name == "nothing", r.Same())
		})
	}
}

// TestRowsAreComparedWhole: rows that begin like those of other numbers are not theirs.
func TestRowsAreComparedWhole(t *testing.T) {
	gate := func(first, last [2]float32) Side {
		values := make([]float32, 2*(sampled+1))
		for row := range 2 {
			values[row*(sampled+1)], values[row*(sampled+1)+sampled] = first[row], last[row]
		}
		return new(memory).add("model.layers.1.mlp.gate.weight", tensortest.New(t, tensor.F32, []int{2, sampled + 1}, values)).side()
	}
	for last, want := range map[[2]float32]int{{6, 5}: 2, {5, 6}: 0} {
		r, err := Compare(t.Context(), gate([2]float32{1, 2}, [2]float32{5, 6}), gate([2]float32{2, 1}, last), Options{})
		require.NoError(t, err)
		rows := 0
		for _, x := range r.Rearranged {
			rows += len(x.Rows)
		}
		assert.Equal(t, want, rows)
	}
}

// TestRearrangedMLP: a dense layer's projections, and those of the shared experts.
func TestRearrangedMLP(t *testing.T) {
	a, b := new(memory), new(memory)
	for _, module := range []string{"model.layers.0.mlp", "model.layers.1.mlp.shared_experts"} {
		x, y := tensortest.New(t, tensor.BF16, []int{1, 2}, []float32{1, 2}), tensortest.New(t, tensor.BF16, []int{1, 2}, []float32{3, 4})
		a.add(module+".gate_proj.weight", x).add(module+".up_proj.weight", y).add(module+".down_proj.weight", x)
		b.add(module+".gate_proj.weight", y).add(module+".up_proj.weight", x).add(module+".down_proj.weight", x)
	}
	r, err := Compare(t.Context(), a.side(), b.side(), Options{})
	require.NoError(t, err)
	assert.False(t, r.Same())
	assert.Equal(t, []Rearranged{
		{Module: "model.layers.0.mlp", Experts: []Renumbered{}, Exchanged: []string{"model.layers.0.mlp"}, Rows: []Renumbered{}},
		{Module: "model.layers.1.mlp.shared_experts", Experts: []Renumbered{}, Exchanged: []string{"model.layers.1.mlp.shared_experts"}, Rows: []Renumbered{}},
	}, r.Rearranged)
}

// TestRegrouped: with group-limited routing, numbers are also places in groups.
func TestRegrouped(t *testing.T) {
	c := &config.Config{Router: config.Router{TopKMethod: "noaux_tc", NGroup: 2}, MoE: config.MoE{NRoutedExperts: 4}}
	for _, test := range []struct {
		order []int // the expert of A under each number of B
		want  bool
	}{{[]int{1, 0, 3, 2}, false}, {[]int{2, 3, 0, 1}, false}, {[]int{2, 1, 0, 3}, true}} {
		a, b := ordered.memory(t).side(), layer{experts: test.order, rows: test.order, dtype: tensor.F32}.memory(t).side()
		a.Config, b.Config = c, c
		s := search{a: a, b: b}
		var moved []Renumbered
		for number, expert := range test.order {
			if number != expert {
				moved = append(moved, Renumbered{expert, number})
			}
		}
		assert.Equal(t, test.want, s.regrouped(moved), test.order)
	}
	r := Rearranged{Module: "m", Experts: []Renumbered{{0, 1}}, Router: routerAlong, Regrouped: true}
	assert.Contains(t, r.lines()[0], "the groups of n_group are others")
}

// TestRearrangedReadErrors: what cannot be read a second time is an error, too.
func TestRearrangedReadErrors(t *testing.T) {
	m := layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.F32}.memory(t)
	reads := 0
	b := m.side()
	b.Reader = readerFunc(func(name string, dst []byte, offset int64) error {
		if strings.HasSuffix(name, "experts.0.up_proj.weight") {
			if reads++; reads > 1 {
				return errors.New("disk on fire")
			}
		}
		return m.ReadAt(name, dst, offset)
	})
	_, err := Compare(t.Context(), ordered.memory(t).side(), b, Options{})
	require.ErrorContains(t, err, "disk on fire")
	require.ErrorContains(t, err, "experts.0.up_proj.weight")
}

// readerFunc is a weights.ReaderAt.
type readerFunc func(name string, dst []byte, offset int64) error

// ReadAt calls the function.
func (f readerFunc) ReadAt(name string, dst []byte, offset int64) error { return f(name, dst, offset) }

// TestOddRouters: a router of another shape, or none, is another router.
func TestOddRouters(t *testing.T) {
	for _, gate := range []tensor.Tensor{tensortest.New(t, tensor.F32, []int{}, []float32{1}), tensortest.New(t, tensor.F32, []int{1, 2}, []float32{1, 2}),
		{DType: tensor.I8, Shape: []int{4, 2}, Data: make([]byte, 8)}, tensortest.New(t, tensor.F32, []int{0, 2}, nil)} {
		m := layer{experts: []int{1, 0, 2, 3}, rows: []int{1, 0, 2, 3}, dtype: tensor.F32}.memory(t)
		m.tensors["model.layers.1.mlp.gate.weight"] = gate
		r, err := Compare(t.Context(), ordered.memory(t).side(), m.side(), Options{})
		require.NoError(t, err)
		require.Len(t, r.Rearranged, 1)
		assert.Equal(t, routerOther, r.Rearranged[0].Router)
	}
}

// TestConfigsOfOneMeaning: a difference of meaning is one of the checkpoints, of storage
// none.
func TestConfigsOfOneMeaning(t *testing.T) {
	parse := func(text string) *config.Config {
		c, err := config.Parse(strings.NewReader(text))
		require.NoError(t, err)
		return c
	}
	m := new(memory).add("w", tensortest.Vector(t, tensor.F32, 1))
	for _, test := range []struct {
		config, want string
		same         bool
	}{
		{`{"model_type":"deepseek","rms_norm_eps":1e-6}`, "same: 1 tensor compared", true},
		{`{"model_type":"deepseek","torch_dtype":"float16"}`, "config.json: torch_dtype: null, then \"float16\": does not count as a difference\nsame: ", true},
		{`{"model_type":"deepseek","rms_norm_eps":1e-5}`, "config.json: rms_norm_eps: 0.000001, then 0.00001\ndiffers: ", false},
		{`{"model_type":"deepseek_v2","num_experts_per_tok":6}`, "config.json: model_type: \"deepseek\", then \"deepseek_v2\"\n", false},
	} {
		a, b := m.side(), m.side()
		a.Config, b.Config = parse(`{"model_type":"deepseek"}`), parse(test.config)
		r, err := Compare(t.Context(), a, b, Options{})
		require.NoError(t, err)
		var out strings.Builder
		require.NoError(t, r.WriteText(&out))
		assert.True(t, strings.HasPrefix(out.String(), test.want), out.String())
		assert.Equal(t, test.same, r.Same())
	}
}
