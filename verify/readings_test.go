package verify_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
)

// rowsBy gives row i of a weight row of(i).
func rowsBy(w tensor.Tensor, of func(i int) int) tensor.Tensor {
	x := w
	x.Data = nil
	for i := range w.Shape[0] {
		x.Data = append(x.Data, w.Row(of(i)).Data...)
	}
	return x
}

// TestReadOffTheNumbers_every: mistakes of weights that are solved for, not tried from a list, and what the report says of
// them; and, without a name, others that are near.
func TestReadOffTheNumbers_every(t *testing.T) {
	t.Parallel()
	const attn, norm = "model.layers.2.self_attn.", "model.layers.2.input_layernorm.weight"
	order := func(name string, of func(n, i int) int) func(*testing.T, weights.Source) altered {
		return func(t *testing.T, src weights.Source) altered {
			w := get(t, src, name)
			return replace(src, name, rowsBy(w, func(i int) int { return of(w.Shape[0], i) }))
		}
	}
	every := func(n int) (all []int) {
		for i := range n {
			all = append(all, i)
		}
		return all
	}
	times := func(name string, by float32, rows ...int) func(*testing.T, weights.Source) altered {
		return func(t *testing.T, src weights.Source) altered {
			w := get(t, src, name)
			var elements []int
			for i := range w.Len() {
				if rows == nil || slices.Contains(rows, i/(w.Len()/w.Shape[0])) {
					elements = append(elements, i)
				}
			}
			return replace(src, name, scaled(t, w, by, elements...))
		}
	}
	pair := func(a, b int) func(n, i int) int {
		return func(_, i int) int {
			switch i {
			case a:
				return b
			case b:
				return a
			}
			return i
		}
	}
	elements := func(name string, by float32, at ...int) func(*testing.T, weights.Source) altered {
		return func(t *testing.T, src weights.Source) altered {
			return replace(src, name, scaled(t, get(t, src, name), by, at...))
		}
	}
	merged := func(name string, rank int) func(*testing.T, weights.Source) altered { // a LoRA
		return func(t *testing.T, src weights.Source) altered {
			w, rng := get(t, src, name), rand.New(rand.NewPCG(1, uint64(rank)))
			values := must(w.Float32s(nil))
			for range rank {
				a, b := make([]float32, w.Shape[0]), make([]float32, w.Shape[1])
				for _, v := range [][]float32{a, b} {
					for i := range v {
						v[i] = float32(rng.NormFloat64())
					}
				}
				for i := range values {
					values[i] += .02 * a[i/len(b)] * b[i%len(b)]
				}
			}
			x := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
			for _, v := range values {
				x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
			}
			return replace(src, name, x)
		}
	}
	columns := func(name string, a, b, size int) func(*testing.T, weights.Source) altered { // exchanged, of 16 bits
		return func(t *testing.T, src weights.Source) altered {
			w := get(t, src, name)
			for row := range slices.Chunk(w.Data, 2*w.Shape[1]) {
				for i := range 2 * size {
					row[2*a+i], row[2*b+i] = row[2*b+i], row[2*a+i]
				}
			}
			return replace(src, name, w)
		}
	}
	cut := func(name string) func(*testing.T, weights.Source) altered { // the last bit of BF16
		return func(t *testing.T, src weights.Source) altered {
			w := get(t, src, name)
			for i := 0; i < len(w.Data); i += 2 {
				w.Data[i] &^= 1
			}
			return replace(src, name, w)
		}
	}
	wide := func(name string, by float32) func(*testing.T, weights.Source) altered { // times a number, in F32
		return func(t *testing.T, src weights.Source) altered {
			w := get(t, src, name)
			x := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
			for _, v := range must(w.Float32s(nil)) {
				x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v*by))
			}
			return replace(src, name, x)
		}
	}
	everyDown := func(by float32, rows ...int) func(*testing.T, weights.Source) altered {
		return func(t *testing.T, src weights.Source) altered {
			a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
			for e := range 16 {
				name := "model.layers.2.mlp.experts." + strconv.Itoa(e) + ".down_proj.weight"
				a.tensors[name] = times(name, by, rows...)(t, src).tensors[name]
			}
			return a
		}
	}
	const mlp, embedded = "model.layers.2.mlp.", "model.embed_tokens.weight"
	idOf := func(fixture string, i int) int { // token i of its pack
		_, p := open(t, fixture+"/golden-f32")
		return must(p.Input()).InputIDs[i]
	}
	const bias = "model.layers.2.mlp.gate.e_score_correction_bias"
	for i, m := range []struct {
		pack, cause, text string
		alter             func(t *testing.T, src weights.Source) altered
	}{
		{"v1-base/golden-f32", "rows-permuted", "they are reversed", order(attn+"o_proj.weight", func(n, i int) int { return n - 1 - i })},
		{"v1-base/golden-bf16", "rows-permuted", "they are reversed", order(attn+"o_proj.weight", func(n, i int) int { return n - 1 - i })},
		{"v1-base/golden-f32", "rows-permuted", "their halves are exchanged", order("lm_head.weight", func(n, i int) int { return (i + n/2) % n })},
		{"v1-base/golden-f32", "rows-permuted", "row 0 of the reference's is row 48, and so on in a circle, which is head 3",
			order(attn+"q_proj.weight", func(n, i int) int { return (i + 16) % n })},
		{"v1-base/golden-f32", "rows-permuted", "rows of the reference's two halves alternate", order(attn+"o_proj.weight", func(n, i int) int { return i%2*(n/2) + i/2 })},
		{"v1-base/golden-f32", "rows-permuted", "heads 0 and 3 are exchanged", order(attn+"v_proj.weight", func(_, i int) int {
			switch i / 16 {
			case 0:
				return i + 48
			case 3:
				return i - 48
			}
			return i
		})},
		{"v3/golden-f32", "rows-permuted", "rows from 5 and rows from 9 are exchanged, 1 row each", order(attn+"q_a_proj.weight", pair(5, 9))},
		{"v1-base/golden-f32", "weight-scaled", "o_proj.weight is 4 times the reference's", times(attn+"o_proj.weight", 4)},
		{"v1-base/golden-bf16", "weight-scaled", "o_proj.weight is 8 (√hidden_size) times the reference's", times(attn+"o_proj.weight", 8)},
		{"v3/golden-f32", "weight-scaled", "q_a_proj.weight is 0.37 times the reference's", times(attn+"q_a_proj.weight", .37)},
		{"v3/golden-f32", "weight-scaled", "has 0.5 times the reference's numbers in rows 3, 7-9", times(attn+"q_a_proj.weight", .5, 3, 7, 8, 9)},
		{"v1-base/golden-f32", "norm-weight", "is not the reference's, which is stored as model.layers.3.post_attention_layernorm.weight",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, norm, "model.layers.3.post_attention_layernorm.weight")
			}},
		{"v1-base/golden-f32", "norm-weight", "is 2 times the reference's", times(norm, 2)},
		{"v1-base/golden-f32", "other-weight", "model.layers.1.self_attn.o_proj.weight is not the reference's, which is stored as model.layers.2.self_attn.o_proj.weight",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, "model.layers.1.self_attn.o_proj.weight", attn+"o_proj.weight")
			}},
		{"v3/golden-f32", "router-bias", "with the other sign of model.layers.2.mlp.gate.e_score_correction_bias, experts are chosen as the reference chose them", times(bias, -1)},
		{"v3/golden-f32", "router-bias", "with model.layers.3.mlp.gate.e_score_correction_bias in the place of",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, bias, "model.layers.3.mlp.gate.e_score_correction_bias")
			}},
		{"v1-base/golden-f32", "other-weight", "shared_experts.up_proj.weight is not the reference's, which is stored as model.layers.3.mlp.shared_experts.up_proj.weight",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, mlp+"shared_experts.up_proj.weight", "model.layers.3.mlp.shared_experts.up_proj.weight")
			}},
		{"v1-base/golden-bf16", "other-weight", "experts.3.down_proj.weight is not the reference's, which is stored as model.layers.2.mlp.experts.5.down_proj.weight; model.layers.2.mlp.experts.5.down_proj.weight is not",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, mlp+"experts.3.down_proj.weight", mlp+"experts.5.down_proj.weight")
			}},
		{"v1-base/golden-f32", "weight-scaled", "down_proj.weight is 4 times the reference's; model.layers.2.mlp.experts.5.", func(t *testing.T, src weights.Source) altered {
			a := times(mlp+"experts.3.down_proj.weight", 4)(t, src)
			name := mlp + "experts.5.down_proj.weight"
			a.tensors[name] = times(name, 2)(t, src).tensors[name]
			return a
		}},
		{"v1-base/golden-f32", "other-weight", "experts.3.gate_proj.weight is not the reference's, which is stored as model.layers.3.mlp.experts.3.gate_proj.weight",
			func(t *testing.T, src weights.Source) altered {
				return swap(t, src, mlp+"experts.3.gate_proj.weight", "model.layers.3.mlp.experts.3.gate_proj.weight")
			}},
		{"v1-base/golden-f32", "other-weight", "model.layers.2.mlp.shared_experts is not the reference's, which is stored as model.layers.3.mlp.shared_experts",
			func(t *testing.T, src weights.Source) altered {
				var pairs []string
				for _, role := range []string{"gate", "up", "down"} {
					name := "shared_experts." + role + "_proj.weight"
					pairs = append(pairs, mlp+name, "model.layers.3.mlp."+name)
				}
				return swap(t, src, pairs...)
			}},
		{"v1-base/golden-f32", "weight-scaled", "shared_experts.up_proj.weight or model.layers.2.mlp.shared_experts.down_proj.weight is 4 times",
			times(mlp+"shared_experts.down_proj.weight", 4)},
		{"v1-base/golden-f32", "weight-scaled", "shared_experts.up_proj.weight or model.layers.2.mlp.shared_experts.down_proj.weight is 8 (√hidden_size) times",
			times(mlp+"shared_experts.up_proj.weight", 8)},
		{"v1-base/golden-f32", "rows-permuted", "shared_experts: the rows of gate_proj are reversed", order(mlp+"shared_experts.gate_proj.weight", func(n, i int) int { return n - 1 - i })},
		{"v1-base/golden-f32", "rows-permuted", "experts.3.down_proj.weight are in another order than the reference's: they are reversed", order(mlp+"experts.3.down_proj.weight", func(n, i int) int { return n - 1 - i })},
		{"v1-base/golden-f32", "rows-permuted", "all experts: the reference's gate_proj and up_proj alternate in the rows of ours", func(t *testing.T, src weights.Source) altered {
			a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
			for e := range 16 {
				gate, up := mlp+"experts."+strconv.Itoa(e)+".gate_proj.weight", mlp+"experts."+strconv.Itoa(e)+".up_proj.weight"
				g, u := get(t, src, gate), get(t, src, up)
				n := g.Shape[0]
				row := func(i int) []byte {
					if i%2 == 0 {
						return g.Row(i / 2).Data
					}
					return u.Row(i / 2).Data
				}
				ng, nu := g, u
				ng.Data, nu.Data = nil, nil
				for i := range n {
					ng.Data, nu.Data = append(ng.Data, row(i)...), append(nu.Data, row(n+i)...)
				}
				a.tensors[gate], a.tensors[up] = ng, nu
			}
			return a
		}},
		{"v1-base/golden-f32", "weight-elements", "o_proj.weight has other numbers than the reference's in single places: [1 36] is ", elements(attn+"o_proj.weight", 2, 100)},
		{"v1-base/golden-bf16", "weight-elements", "o_proj.weight has other numbers than the reference's in single places: [1 36] is ", elements(attn+"o_proj.weight", 8, 100)},
		{"v3/golden-f32", "weight-elements", "in single places: [0 3] is ", elements(attn+"q_a_proj.weight", -1, 3, 131)},
		{"v3/golden-f32", "weight-elements", "q_a_proj.weight has other numbers than the reference's in single places: [0 3] is 2.538e+29, the reference's at most 3e+23",
			elements(attn+"q_a_proj.weight", 0x1p100, 3)},
		{"v3/golden-bf16", "weight-elements", ", the reference's at most ", elements(attn+"q_a_proj.weight", 0x1p100, 3)},
		{"v1-base/golden-f32", "weight-elements", "experts.3.down_proj.weight has other numbers than the reference's in single places: [4 4] is ", elements(mlp+"experts.3.down_proj.weight", 3, 100)},
		{"v1-base/golden-f32", "weight-column", "o_proj.weight differs from the reference's in column 5, the input channel, which is 2 times", func(t *testing.T, src weights.Source) altered {
			var column []int
			for r := range 64 {
				column = append(column, 64*r+5)
			}
			return elements(attn+"o_proj.weight", 2, column...)(t, src)
		}},
		{"v1-base/golden-f32", "low-rank", "o_proj.weight and the reference's differ by a matrix of rank 3,", merged(attn+"o_proj.weight", 3)},
		{"v1-base/golden-f32", "low-rank", "shared_experts.down_proj.weight and the reference's differ by a matrix of rank 2,", merged(mlp+"shared_experts.down_proj.weight", 2)},
		{"v1-base/golden-f32", "", "", merged(attn+"o_proj.weight", 40)},
		{"v1-base/golden-f32", "columns-permuted", "the columns of model.layers.2.self_attn.o_proj.weight are in another order than the reference's: " +
			"columns from 5 and columns from 9 are exchanged, 1 column each", columns(attn+"o_proj.weight", 5, 9, 1)},
		{"v1-base/golden-f32", "columns-permuted", "columns from 0 and columns from 32 are exchanged, 16 columns each", columns(attn+"o_proj.weight", 0, 32, 16)},
		{"v3/golden-bf16", "columns-permuted", "columns from 3 and columns from 20 are exchanged, 1 column each", columns(attn+"q_b_proj.weight", 3, 20, 1)},
		{"v1-base/golden-f32", "columns-permuted", "columns from 5 and columns from 9 are exchanged, 1 column each", columns("model.layers.2.mlp.gate.weight", 5, 9, 1)},
		{"v1-base/golden-f32", "columns-permuted", "shared_experts.down_proj.weight are in another order than the reference's: columns from 5 and columns from 9 " +
			"are exchanged, 1 column each, or the same rows of gate_proj and up_proj", columns(mlp+"shared_experts.down_proj.weight", 5, 9, 1)},
		{"v1-base/golden-f32", "rows-permuted", "experts.3.up_proj.weight are in another order than the reference's: rows from 5 and rows from 9 are exchanged, 1 row each",
			order(mlp+"experts.3.up_proj.weight", pair(5, 9))},
		{"v3/golden-bf16", "rows-permuted", "shared_experts.gate_proj.weight are in another order than the reference's: rows from 5 and rows from 9 are exchanged, 1 row each",
			order(mlp+"shared_experts.gate_proj.weight", pair(5, 9))},
		{"v1-base/golden-f32", "mlp-neurons", "in neuron 5", order(mlp+"shared_experts.up_proj.weight", func(_, i int) int { // and row 9 stays
			if i == 5 {
				return 9
			}
			return i
		})},
		{"v1-base/golden-f32", "low-rank", "differ by a matrix of rank 2, such as a LoRA or a few columns", func(t *testing.T, src weights.Source) altered {
			name := attn + "o_proj.weight"
			return replace(src, name, scaled(t, columns(name, 5, 9, 1)(t, src).tensors[name], 2, 100))
		}},
		{"v1-base/golden-f32", "", "", cut(embedded)},
		{"v3/golden-bf16", "", "", cut(embedded)},
		{"v1-base/golden-f32", "", "", cut("lm_head.weight")},
		{"v1-base/golden-f32", "", "", cut(attn + "o_proj.weight")},
		{"v1-base/golden-f32", "embedding-scaled", "embeddings are 0.999 times ours", wide(embedded, 1.0012)},
		{"v1-base/golden-f32", "weight-scaled", "o_proj.weight is 1.0004 times the reference's", wide(attn+"o_proj.weight", 1.0004)},
		{"v3/golden-f32", "weight-scaled", "q_a_proj.weight is 0.9997 times the reference's", wide(attn+"q_a_proj.weight", .9997)},
		{"v1-base/golden-f32", "norm-weight", "is not the reference's: 64 of 64 channels are off, each by a factor of its own", // another's is near
			func(t *testing.T, src weights.Source) altered {
				const near = "model.layers.3.post_attention_layernorm.weight"
				a := swap(t, src, norm, near)
				a.tensors[near] = wide(norm, 1.005)(t, src).tensors[norm]
				return a
			}},
		{"v1-base/golden-f32", "routed-sum-scaled", "the routed sum is 4 times the reference's", everyDown(4)},
		{"v1-base/golden-f32", "routed-sum-scaled", "the routed sum is 0.37 times the reference's", everyDown(.37)},
		{"v1-base/golden-f32", "weight-scaled", "down_proj.weight of all experts has 2 times the reference's numbers in rows 3, 9", everyDown(2, 3, 9)},
		{"v1-base/golden-f32", "embedding-rows", "row for token id i is row i-1 of", order(embedded, func(n, i int) int { return (i + 1) % n })},
		{"v3/golden-bf16", "embedding-rows", "for 2 of the pack's", order(embedded, pair(idOf("v3", 0), idOf("v3", 1)))},
		{"v1-base/golden-f32", "embedding-scaled", "embeddings are 0.125 (1/√hidden_size) times ours", times(embedded, 8)},
		{"v3/golden-f32", "embedding-scaled", "embeddings are 2.5 times ours", times(embedded, .4)},
		{"v1-base/golden-f32", "other-weight", "model.embed_tokens.weight is not the reference's, which is stored as lm_head.weight",
			func(t *testing.T, src weights.Source) altered { return swap(t, src, embedded, "lm_head.weight") }},
		{"v1-base/golden-f32", "columns-permuted", "64 of 64 are elsewhere; channel 0 of the reference's is column 63", func(t *testing.T, src weights.Source) altered {
			w := get(t, src, embedded)
			x := w
			x.Data = nil
			for i := range w.Len() {
				from := i/64*64 + 63 - i%64
				x.Data = append(x.Data, w.Data[2*from:2*from+2]...)
			}
			return replace(src, embedded, x)
		}},
		{"v1-base/golden-f32", "", "", func(t *testing.T, src weights.Source) altered { // one number is another
			return replace(src, embedded, scaled(t, rowsBy(get(t, src, embedded), func(i int) int { return (i + 1) % 128 }), 2, 64*idOf("v1-base", 0)))
		}},
		{"v1-base/golden-f32", "", "", func(t *testing.T, src weights.Source) altered {
			w := rowsBy(get(t, src, attn+"o_proj.weight"), func(i int) int { return (i + 1) % 64 })
			return replace(src, attn+"o_proj.weight", scaled(t, w, 2, 100))
		}},
		{"v1-base/golden-f32", "", "", func(t *testing.T, src weights.Source) altered { // a factor, but for one weight
			w := scaled(t, get(t, src, attn+"o_proj.weight"), 4, every(64*64)...)
			return replace(src, attn+"o_proj.weight", scaled(t, w, 2, 100))
		}},
	} {
		if i%3 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(strconv.Itoa(i)+" "+m.text, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, m.pack)
			src := m.alter(t, c)
			r := run(t, c.Config, src, p, verify.Options{})
			if m.cause == "" {
				require.Nil(t, r.Cause)
				return
			}
			require.NotNil(t, r.Cause)
			require.Equal(t, m.cause, r.Cause.ID, r.Cause.Text)
			require.Contains(t, r.Cause.Text, m.text)
		})
	}
}
