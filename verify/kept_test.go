package verify_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestKeptWeightsOfTraces_every: weights of routers that an engine in BF16 keeps in float32 are recognised where its trace does not
// name them, and a router that is wrong beside that fails; of choices alone both are allowed for. An engine that rounds
// weights that it says to keep fails with that cause, and so does one that keeps weights that it says to round.
func TestKeptWeightsOfTraces_every(t *testing.T) {
	t.Parallel()
	const gate, bias, row = "mlp.gate.weight", "mlp.gate.e_score_correction_bias", "model.layers.2.mlp.gate.weight"
	checkpoint, _ := open(t, "v3-trained/golden-f32")
	src := altered{Source: checkpoint, tensors: map[string]tensor.Tensor{}}
	for i := range checkpoint.Tensors() {
		if strings.HasSuffix(i.Name, gate) || strings.HasSuffix(i.Name, bias) { // numbers that BF16 does not have
			w := get(t, checkpoint, i.Name)
			wide := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
			for n, v := range must(w.Float32s(nil)) {
				wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(v*(1+float32(n%61-30)*0x1p-13)))
			}
			src.tensors[i.Name] = wide
		}
	}
	wrong := altered{Source: src, tensors: map[string]tensor.Tensor{row: scaled(t, src.tensors[row], 1.02, 64, 65, 66, 67)}}
	keeps := func(gate, bias bool) func(c *config.Config) {
		return func(c *config.Config) {
			*c = *c.WithRules(func(r *config.Rules) { r.Router.KeepsGate, r.Router.CastsRouterBias = gate, !bias })
		}
	}
	for name, c := range map[string]struct {
		gate, bias bool     // that the engine keeps
		says       []string // the trace
		rounds     bool     // the router's logits
		first      string
		line       string
	}{
		"gates kept":                 {gate: true, bias: true, line: "kept_float32: " + bias + ", " + gate},
		"gates kept, logits rounded": {gate: true, bias: true, rounds: true, line: "kept_float32: " + bias + ", " + gate},
		"gates rounded":              {bias: true},
		"said":                       {gate: true, bias: true, says: []string{gate, bias}},
		"said, and rounded": {bias: true, says: []string{gate, bias}, first: "model.layers.1.mlp.gate.logits",
			line: "router-bf16: the engine rounds the operands of the router's product to BF16, here they are in float32"},
		"not said, and kept": {gate: true, bias: true, says: []string{bias}, first: "model.layers.1.mlp.gate.logits",
			line: "router-rounded: the engine kept model.layers.1.mlp.gate.weight in F32, here it is rounded to BF16, as kept_float32"},
	} {
		if name != "gates kept" && c.first == "" && !configtest.Every(t) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			_, p := open(t, "v3-trained/golden-f32")
			e := engine{inputs: engineForms["F32"], bf16: true, config: keeps(c.gate, c.bias)}
			if c.rounds {
				e.fault = func(f *faulty) {
					linear := f.linear
					f.linear = func(x *model.Activation, l *model.Linear) *model.Activation {
						y := linear(x, l)
						if strings.HasSuffix(l.Weight.Name, gate) {
							y = each(y, func(v float32) float32 { return tensor.Rounded(v, tensor.BF16) })
						}
						return y
					}
				}
			}
			p = e.trace(t, checkpoint.Config, src, p)
			p.Manifest.KeptFloat32 = c.says
			if c.first == "" {
				alone := run(t, checkpoint.Config, src, choicesOf(t, p, 1, 2, 3), verify.Options{})
				require.NotEqual(t, report.Fail, alone.Verdict, "%v", alone.FirstDivergence)
				require.NotZero(t, alone.Routing.NearTies)
			}
			r := run(t, checkpoint.Config, src, p, verify.Options{})
			shown := printed(t, r)
			require.Contains(t, shown, c.line)
			if c.first != "" {
				require.Equal(t, report.Fail, r.Verdict)
				require.Equal(t, c.first, *r.FirstDivergence)
				return
			}
			require.Equal(t, report.Pass, r.Verdict, shown)
			r = run(t, checkpoint.Config, wrong, p, verify.Options{Layers: selected(t, text.Spans{{2, 2}})})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, strings.TrimSuffix(row, "weight")+"logits", *r.FirstDivergence)
		})
	}
}

// choicesOf are a trace's choices of experts alone.
func choicesOf(t *testing.T, p *pack.Pack, layers ...int) *pack.Pack {
	in := must(p.Input())
	var choices [][][]int
	for row := range in.InputIDs {
		if in.IsPadding(row) {
			continue
		}
		var of [][]int
		for _, layer := range layers {
			ids := must(p.Ints(pack.StageOf(layer, pack.TopKIdx)))
			k := len(ids) / len(in.InputIDs)
			of = append(of, ids[k*row:k*row+k])
		}
		choices = append(choices, of)
	}
	path := filepath.Join(t.TempDir(), "choices.json")
	require.NoError(t, os.WriteFile(path, must(json.Marshal(choices)), 0o666))
	return must(pack.Choices(path, in, p.DType))
}

// TestKeptBiasesOfTraces: MiniMax-M2's class rounds biases, which are near 8. An engine that does not is recognised; what it
// then chooses otherwise fails.
func TestKeptBiasesOfTraces(t *testing.T) {
	t.Parallel()
	checkpoint, _ := open(t, "minimax-m2/golden-f32")
	src := altered{Source: checkpoint, tensors: map[string]tensor.Tensor{}}
	wrong := altered{Source: checkpoint, tensors: map[string]tensor.Tensor{}}
	for i := range checkpoint.Tensors() {
		if strings.HasSuffix(i.Name, "e_score_correction_bias") {
			w := get(t, checkpoint, i.Name)
			wide, moved := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}, tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
			for n, v := range must(w.Float32s(nil)) {
				wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(8+v))
				if n == 3 {
					v++
				}
				moved.Data = binary.LittleEndian.AppendUint32(moved.Data, math.Float32bits(8+v))
			}
			src.tensors[i.Name], wrong.tensors[i.Name] = wide, moved
		}
	}
	for _, keeps := range []bool{true, false} {
		_, p := open(t, "minimax-m2/golden-f32")
		e := engine{inputs: engineForms["F32"], bf16: true, config: func(c *config.Config) {
			*c = *c.WithRules(func(r *config.Rules) { r.Router.CastsRouterBias = !keeps })
		}}
		p = e.trace(t, checkpoint.Config, src, p)
		p.Manifest.KeptFloat32 = nil
		r := run(t, checkpoint.Config, src, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%v: %v", keeps, r.FirstDivergence)
		require.Equal(t, keeps, strings.Contains(printed(t, r), "kept_float32: mlp.gate.e_score_correction_bias"))
		r = run(t, checkpoint.Config, wrong, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict)
		require.Regexp(t, `topk_idx$`, *r.FirstDivergence)
	}
}
