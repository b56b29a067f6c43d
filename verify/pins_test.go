package verify_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// biased is a source whose router biases are multiplied.
func biased(t *testing.T, c *config.Config, src weights.Source, by float32) altered {
	t.Helper()
	a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for _, l := range c.MoELayers() {
		name := fmt.Sprintf("model.layers.%d.mlp.gate.e_score_correction_bias", l)
		w := get(t, src, name)
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		w.DType, w.Data = tensor.F32, nil
		for _, v := range values {
			w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(by*v))
		}
		a.tensors[name] = w
	}
	return a
}

// TestNextOfChoices: of choices without a cause the report names the weights that decide them: the bias, and the router
// where the pack has no logits.
func TestNextOfChoices(t *testing.T) {
	t.Parallel()
	without := rewritten(t, "v3/golden-f32", func(dir string, m map[string]any) {
		m["partial"] = "without logits"
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return strings.HasSuffix(name, "gate.logits") })
		prune(t, dir, m)
	})
	c, p := open(t, "v3/golden-f32")
	for text, p := range map[string]*pack.Pack{
		"compare model.layers.2.mlp.gate.e_score_correction_bias with the original's":                                 p,
		"compare model.layers.2.mlp.gate.weight, model.layers.2.mlp.gate.e_score_correction_bias with the original's": must(pack.Open(without)),
	} {
		for _, reference := range []pack.Reference{p.Manifest.Reference, {Kind: pack.Engine, Name: "engine", Version: "1"}} {
			p.Manifest.Reference = reference
			r := run(t, c.Config, biased(t, c.Config, c, -3), p, verify.Options{})
			require.Equal(t, "model.layers.2.mlp.gate.topk_idx", *r.FirstDivergence)
			require.Nil(t, r.Cause)
			require.Equal(t, text, r.Next.Text)
			require.Equal(t, "dsmoe diff ORIGINAL CHECKPOINT --include 'model.layers.2.mlp.gate.*'", r.Next.Command)
			merged, _, err := verify.Merge([]*report.Report{r})
			require.NoError(t, err)
			require.Equal(t, r.Next, merged.Next)
		}
	}
}

// TestBiasesThatDecideNothing: where zero or doubled biases give the same choices, they pass and are not counted as
// exercised. Where they give others, they fail.
func TestBiasesThatDecideNothing(t *testing.T) {
	t.Parallel()
	const bias = "model.layers.1.mlp.gate.e_score_correction_bias"
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		for _, by := range []float32{1, 0, 2} {
			c, p := open(t, "v32-fp8/golden-f32")
			r := run(t, c.Config, biased(t, c.Config, c, by), p, verify.Options{Mode: mode})
			require.Equal(t, report.Pass, r.Verdict, "%s %g", mode, by)
			require.Equal(t, []string{bias}, r.Coverage.WeightsUnpinned)
			require.Empty(t, r.Coverage.WeightsUnchecked)
			require.Equal(t, 47, r.Coverage.WeightsChecked)
			same, others := []string{report.WithoutBias, report.TwiceTheBias}, ", and with it doubled"
			if by == 2 { // four times the bias decides
				same, others = same[:1], ""
			}
			require.Equal(t, same, r.Routing.Biases[0].Same)
			require.Contains(t, printed(t, r), "\n           layer 1: all choices are the same without e_score_correction_bias"+
				others+": not counted as exercised\n")
			require.Contains(t, printed(t, r), "verdict    PASS (3 of 6 experts, 47 of 57 weights exercised, 1 not pinned)\n")

			c, p = open(t, "v3/golden-f32")
			r = run(t, c.Config, biased(t, c.Config, c, by), p, verify.Options{Mode: mode, Undiagnosed: true})
			require.Empty(t, r.Coverage.WeightsUnpinned)
			require.NotContains(t, printed(t, r), "pinned)")
			if by == 1 {
				require.Equal(t, report.Pass, r.Verdict)
			} else {
				require.Equal(t, report.Fail, r.Verdict, "%s %g", mode, by)
			}
		}
	}
}

// TestLayersOfUnpinnedBiases groups layers by what their choices do not tell.
func TestLayersOfUnpinnedBiases(t *testing.T) {
	t.Parallel()
	r := &report.Report{Routing: report.Routing{Choices: 1}}
	for l, same := range [][]string{{}, {report.WithoutBias}, {report.TwiceTheBias}, {report.WithoutBias}} {
		r.Routing.Biases = append(r.Routing.Biases, report.BiasPins{Layer: fmt.Sprintf("model.layers.%d", l), Same: same})
	}
	require.Contains(t, printed(t, r), `
           layers 1, 3: all choices are the same without e_score_correction_bias: not counted as exercised
           layer 2: all choices are the same with e_score_correction_bias doubled: not counted as exercised
`)
}

// TestWhatDecidesChoicesThatAreNotCompared: the golden's choices take the place of the model's, so that neither a bias
// nor a table shows in the stages that are selected.
func TestWhatDecidesChoicesThatAreNotCompared(t *testing.T) {
	t.Parallel()
	for golden, name := range map[string]string{
		"v3/golden-f32": "model.layers.2.mlp.gate.e_score_correction_bias", "v4/golden-f32": "model.layers.1.mlp.gate.tid2eid",
	} {
		c, p := open(t, golden)
		checked := map[bool]int{}
		for _, compared := range []bool{false, true} {
			o := verify.Options{Layers: text.Spans{{1, 2}}, Stages: []string{"mlp.gate.topk_weight", "mlp.experts.output"}}
			if compared {
				o.Stages = append(o.Stages, "mlp.gate.topk_idx")
			}
			r := run(t, c.Config, c, p, o)
			require.Equal(t, report.Pass, r.Verdict)
			require.Empty(t, r.Coverage.WeightsUnpinned, "not run in vain, but not checked")
			checked[compared] = r.Coverage.WeightsChecked
		}
		require.Greater(t, checked[true], checked[false], name)
	}
}

// numbersOf yields the numbers of a config that its family reads, with a function that sets another.
func numbersOf(c *config.Config) iter.Seq2[string, func(by float64) map[string]jsontext.Value] {
	return func(yield func(string, func(float64) map[string]jsontext.Value) bool) {
		document := map[string]any{}
		read := func(value []byte, key string) {
			var x any
			if err := json.Unmarshal(value, &x); err != nil {
				panic(err)
			}
			if key != "" {
				document[key] = x
			} else {
				maps.Copy(document, x.(map[string]any))
			}
		}
		for _, d := range config.Differences(c, &config.Config{}) { // with keys that have their default
			if value := c.Value(d.Key); value != nil {
				read(value, d.Key)
			}
		}
		read(c.JSON(), "")
		for _, key := range slices.Sorted(maps.Keys(document)) {
			if x, is := document[key].(float64); is && c.Value(key) != nil {
				yield(key, func(by float64) map[string]jsontext.Value { return map[string]jsontext.Value{key: times(x, by)} })
			}
			object, _ := document[key].(map[string]any)
			for part, value := range object {
				if x, is := value.(float64); is {
					yield(key+"."+part, func(by float64) map[string]jsontext.Value {
						changed := maps.Clone(object)
						changed[part] = json.RawMessage(times(x, by))
						return map[string]jsontext.Value{key: must(json.Marshal(changed))}
					})
				}
			}
		}
	}
}

// times is a multiple of a number, an integer of integers.
func times(x, by float64) jsontext.Value {
	if product := x * by; x == math.Trunc(x) {
		return must(json.Marshal(math.Floor(product)))
	} else {
		return must(json.Marshal(product))
	}
}

// multiples are the words of factors in reports; others have none.
var multiples = map[float64]string{2: "twice", 0.5: "half", 10: "-"}

// TestNoNumberIsBelievedUnsaid_every: another number in config.json that changes the model fails, or is refused, or the
// report says that the pack does not exercise its key.
func TestNoNumberIsBelievedUnsaid_every(t *testing.T) {
	t.Parallel()
	for i, golden := range []string{"v1-base/golden-f32", "v1-base/golden-bf16", "v1-rope-dynamic/golden-f32", "v2-lite/golden-f32",
		"v2-group-yarn/golden-f32", "v3/golden-f32", "v3/golden-bf16", "v3-yarn/golden-f32", "v32/golden-f32", "v32-yarn/golden-f32",
		"glm5/golden-f32", "glm4-moe-lite/golden-f32", "kimi-k2/golden-f32", "v4/golden-f32", "v4/golden-bf16",
		"v4-128/golden-f32", "v4-fp4/golden-f32"} {
		if i%8 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(golden, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, golden)
			p.Manifest.Config, p.Manifest.Checkpoint = nil, nil // which would tell another config.json by itself
			right := run(t, c.Config, c, p, verify.Options{})
			for key, set := range numbersOf(c.Config) {
				factors := []float64{2, 0.5}
				if strings.HasSuffix(key, "_eps") {
					factors = append(factors, 10)
				}
				for _, by := range factors {
					changed, err := c.Config.Override(set(by))
					if err != nil || !changesModel(p, c.Config, changed) {
						continue
					}
					r, err := verify.Run(t.Context(), changed, c, p, verify.Options{Undiagnosed: true, FailFast: true})
					passes, part := err == nil && r.Verdict == report.Pass, key[strings.LastIndex(key, ".")+1:]
					if passes {
						require.Contains(t, saidOf(t, r), part, "%s × %g passes", key, by)
					}
					for _, u := range right.Coverage.Untold {
						if strings.HasSuffix("."+u.Key, "."+part) && strings.Contains(u.Why, multiples[by]) {
							require.True(t, passes, "%s × %g fails, though %s", key, by, u.Why)
						}
					}
				}
			}
		})
	}
}

// changesModel reports whether a pack's reference computes otherwise with another config.
func changesModel(p *pack.Pack, c, other *config.Config) bool {
	c, other = must(p.Config(c, "")), must(p.Config(other, ""))
	return slices.ContainsFunc(config.Differences(c, other), func(d config.Difference) bool { return d.Meaning })
}

// saidOf are the lines of a report that say which keys are not exercised.
func saidOf(t *testing.T, r *report.Report) (lines string) {
	for line := range strings.Lines(printed(t, r)) {
		if strings.Contains(line, "not exercised") {
			lines += line
		}
	}
	return lines
}

// TestTablesOfOtherIntegers: a table of experts whose ids are of 32 bits is refused by name, be its numbers right or
// not.
func TestTablesOfOtherIntegers(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v4/golden-f32", "v4/golden-bf16", "v4-128/golden-f32", "v4-fp4/golden-f32"} {
		c, p := open(t, golden)
		const name = "layers.0.ffn.gate.tid2eid"
		for _, wrong := range []uint32{0, 1} {
			table := get(t, c, name)
			ids := table.Data
			table.DType, table.Data = tensor.I32, nil
			for i := range table.Len() {
				table.Data = binary.LittleEndian.AppendUint32(table.Data, binary.LittleEndian.Uint32(ids[8*i:])^wrong)
			}
			_, err := verify.Run(t.Context(), c.Config, replace(c, name, table), p, verify.Options{})
			require.ErrorContains(t, err, name+": dtype I32, I64 is expected")
		}
	}
}
