package verify_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// stepping is the arithmetic of an engine whose rows of later steps are wrong.
type stepping struct {
	*model.Plain
	position func(at int) int      // of RoPE's, for a row's own; nil for right ones
	wrong    func(b, row int) bool // rows of sequence b that see what hide and stale say
	hide     bool                  // the newest key is left out
	stale    int                   // keys that are those of sequence 0
}

func (e *stepping) RoPE(x, cos, sin *model.Activation, r *model.Rotary) *model.Activation {
	if e.position != nil {
		cos, sin = e.restarted(cos), e.restarted(sin)
	}
	return e.Plain.RoPE(x, cos, sin, r)
}

// restarted is a table of RoPE with the rows of other positions.
func (e *stepping) restarted(table *model.Activation) *model.Activation {
	y := each(table, func(v float32) float32 { return v })
	for row := range y.Rows() {
		copy(y.Row(row), table.Row(e.position(row)))
	}
	return y
}

func (e *stepping) Scores(q, k *model.Activation, first, n int, s *model.Scoring) *model.Activation {
	right := e.Plain.Scores(q, k, first, n, s)
	other := e.Plain.Scores(q, e.prefixed(k, k.Width()), first, n, s)
	e.each(right, func(b, row int, scores []float32) {
		if copy(scores, other.Row(row)); e.hide {
			scores[first+row%n] = -math.MaxFloat32
		}
	})
	return right
}

func (e *stepping) Context(probs, vT *model.Activation) *model.Activation {
	right, other := e.Plain.Context(probs, vT), e.Plain.Context(probs, e.prefixed(vT, 1))
	e.each(right, func(_, row int, values []float32) { copy(values, other.Row(row)) })
	return right
}

// each calls f with the rows of x [batch, heads, rows, width] that are wrong, all rows of a sequence being there.
func (e *stepping) each(x *model.Activation, f func(b, row int, values []float32)) {
	for row := range x.Rows() {
		if b := row / x.Shape[2] / x.Shape[1]; e.wrong != nil && e.wrong(b, row%x.Shape[2]) {
			f(b, row, x.Row(row))
		}
	}
}

// prefixed is x [batch, heads, …] with the first numbers of each row of keys or values of sequence 0.
func (e *stepping) prefixed(x *model.Activation, each int) *model.Activation {
	y := &model.Activation{Shape: x.Shape, DType: x.DType, Values: slices.Clone(x.Values)}
	matrices := x.Shape[1]
	if each == 1 { // transposed: a row holds a channel of all tokens
		matrices *= x.Shape[2]
	}
	sequence := len(x.Values) / x.Shape[0]
	for m := range len(x.Values) / sequence * matrices {
		from := m * (sequence / matrices)
		copy(y.Values[from:from+e.stale*each], x.Values[from%sequence:])
	}
	return y
}

// TestSteps_every: the rows of a right engine's prompts, chunks and decode steps pass and are counted. Of an engine whose later
// steps are wrong the first stage behind the fault fails, and the rows are named.
func TestSteps_every(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault stepping
		rows  string
	}{
		"right": {},
		"a decode kernel that leaves out the newest key": {stepping{hide: true, wrong: func(_, row int) bool { return row >= 4 }},
			"in rows 4, 5 of sequences 0, 1 alone, all decode (4 of 4)"},
		"the same in steps of two requests": {stepping{hide: true, wrong: func(b, row int) bool { return row == 5-b }},
			"in row 5 of sequence 0; row 4 of sequence 1 alone, all decode (2 of 4), all in steps of several requests (2 of 3), all of step 3 (2 of 2)"},
		"a position that restarts": {stepping{position: func(at int) int { return at % 4 }}, "in rows 4, 5 of sequences 0, 1 alone, all decode (4 of 4)"},
		"a stale prefix": {stepping{stale: 2, wrong: func(b, row int) bool { return b == 1 && row >= 2 }},
			"in rows 2-5 of sequence 1 alone, up to the end, 2 of 4 chunk, 2 of 4 decode"},
		"a chunk that lost its prefix": {stepping{hide: true, wrong: func(_, row int) bool { return row == 2 }},
			"in row 2 of sequences 0, 1 alone, all chunk (2 of 4), each the first of its step (2 of 2)"},
	} {
		if name != "right" && name != "a stale prefix" && !configtest.Every(t) {
			continue
		}
		c, _ := open(t, "v3/golden-f32")
		p := must(pack.Open(fixture("engines/llama-v3-steps")))
		require.NoError(t, p.Spell(c.Config))
		if name != "right" {
			p.Replaced = map[string]tensor.Tensor{}
			e := test.fault
			e.Plain = model.NewPlain(model.Options{DType: tensor.F32})
			net := &model.Network[*model.Activation]{Model: must(model.Load(c.Config, c)), Input: must(p.Input()), Options: model.Options{DType: tensor.F32},
				Arithmetic: &e, Trace: &recorder32{p}}
			_, err := net.Forward(context.Background())
			require.NoError(t, err)
			e.Plain.Close(nil)
		}
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, map[string]int{"prefill": 4, "chunk": 4, "decode": 4}, r.Golden.Steps.Rows)
		if name == "right" {
			require.Equal(t, report.Pass, r.Verdict, r.Reasons)
			require.Contains(t, printed(t, r), "; 4 prefill rows, 4 chunk rows, 4 decode rows of 2 requests, up to 2 in one step\n")
			continue
		}
		require.Equal(t, "model.layers.0.self_attn.o_proj.input", *r.FirstDivergence, name)
		first := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Verdict == report.Fail })]
		require.Equal(t, test.rows, first.Rows, name)
		for _, cause := range r.Causes { // the last of all keys
			require.Equal(t, "newest-key", cause.ID, name)
		}
		for _, form := range []string{printed(t, r), junit(t, r), html(t, r)} {
			require.Contains(t, form, test.rows, name)
		}
	}
}

// TestRowsWithoutNumbers: where an engine gave NaN, infinities or zeros, and ordinary numbers are computed here, the cause is
// that, and names the rows.
func TestRowsWithoutNumbers(t *testing.T) {
	t.Parallel()
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, test := range []struct {
		stage, rows, id string
		value           float32
		at              func(b, row int) bool
		want            string
	}{
		{"model.layers.1.self_attn.o_proj.output", "in rows 4, 5 of sequences 0, 1 alone, all decode (4 of 4)", "reference-not-finite", nan,
			func(_, row int) bool { return row >= 4 }, `^the engine gave NaN in .* where the numbers computed here are at most \S+$`},
		{"model.layers.1.self_attn.q_b_proj.output", "in row 3 of sequence 1 alone", "reference-not-finite", inf,
			func(b, row int) bool { return b == 1 && row == 3 }, `^the engine gave \+Inf in `},
		{"model.layers.3.mlp.shared_experts.output", "in all rows of sequence 1 alone", "reference-zeros", 0,
			func(b, _ int) bool { return b == 1 }, `^the engine gave only zeros in .* have an RMS of \S+: nothing was computed or stored there, or weights are zero$`},
		{"model.layers.3.mlp.experts.output", "in all rows of sequence 1 alone", "reference-zeros", 0, func(b, _ int) bool { return b == 1 },
			`only zeros in all rows of sequence 1 alone`},
		{"model.layers.0.mlp.gate_proj.output", "in all 12 rows", "reference-zeros", 0, func(int, int) bool { return true }, `only zeros in all 12 rows`},
		{"model.layers.2.input_layernorm.output", "in all 12 rows", "reference-zeros", 0, func(int, int) bool { return true }, `only zeros in all 12 rows`},
	} {
		c, _ := open(t, "v3/golden-f32")
		p := must(pack.Open(fixture("engines/llama-v3-steps")))
		require.NoError(t, p.Spell(c.Config))
		x := must(p.Tensor(test.stage))
		width := x.Shape[len(x.Shape)-1]
		for i := range len(x.Data) / 4 {
			if row := i / width; test.at(row/6, row%6) {
				binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(test.value))
			}
		}
		p.Replaced = map[string]tensor.Tensor{test.stage: x}
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, test.stage, *r.FirstDivergence)
		require.Len(t, r.Causes, 1, "%v", r.Causes)
		require.Equal(t, test.id, r.Cause.ID)
		require.Regexp(t, test.want, r.Cause.Text)
		require.Contains(t, r.Cause.Text, test.rows)
		for _, form := range []string{printed(t, r), html(t, r), junit(t, r)} {
			require.NotContains(t, form, "Inf times")
		}
	}
}
