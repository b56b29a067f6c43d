package verify_test

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
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

type (
	activation = model.Activation
	parts      = []model.Part[*activation]
)

// faulty is an arithmetic in which an engine's fault changes some operations: each is the field of its name.
type faulty struct {
	model.Arithmetic[*activation]
	in      *model.Input
	linear  func(x *activation, l *model.Linear) *activation
	rmsNorm func(x *activation, w *model.Weight, eps float64) *activation
	add     func(x, z *activation) *activation
	swiGLU  func(gate, up *activation) *activation
	tables  func(r *model.Rotary) (cos, sin *activation)
	scores  func(q, k *activation, first, n int, s *model.Scoring) *activation
	context func(probs, vT *activation) *activation
	combine func(weight *activation, p parts, order config.RoutedSum) *activation
	move    func(m *model.Move, operands ...*activation) *activation
}

func newFaulty(a model.Arithmetic[*activation], in *model.Input) *faulty {
	return &faulty{a, in, a.Linear, a.RMSNorm, a.Add, a.SwiGLU, a.Tables, a.Scores, a.Context, a.Combine, a.Move}
}

func (f *faulty) Linear(x *activation, l *model.Linear) *activation { return f.linear(x, l) }

func (f *faulty) RMSNorm(x *activation, w *model.Weight, eps float64) *activation {
	return f.rmsNorm(x, w, eps)
}

func (f *faulty) Add(x, z *activation) *activation { return f.add(x, z) }

func (f *faulty) SwiGLU(gate, up *activation) *activation { return f.swiGLU(gate, up) }

func (f *faulty) Tables(r *model.Rotary) (cos, sin *activation) { return f.tables(r) }

func (f *faulty) Scores(q, k *activation, first, n int, s *model.Scoring) *activation {
	return f.scores(q, k, first, n, s)
}

func (f *faulty) Context(probs, vT *activation) *activation { return f.context(probs, vT) }

func (f *faulty) Combine(weight *activation, p parts, order config.RoutedSum) *activation {
	return f.combine(weight, p, order)
}

func (f *faulty) Move(m *model.Move, operands ...*activation) *activation {
	return f.move(m, operands...)
}

// TestFaultyEnginesAreNamed_every: what an engine computes wrongly in attention, in sums of experts, in its choice of rows and in
// what it gives its modules is named at the first stage that shows it, and nothing else is.
func TestFaultyEnginesAreNamed_every(t *testing.T) {
	t.Parallel()
	const v3, glm, attended, routed = "v3-trained", "glm4-moe", "model.layers.0.self_attn.o_proj.input", moe1 + "experts.output"
	// hiding hides keys from queries
	hiding := func(hides func(query, key int) bool) func(f *faulty) { // beside padding
		return func(f *faulty) {
			scores := f.scores
			f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
				y := scores(q, k, first, n, &model.Scoring{By: s.By, Divides: s.Divides})
				for row := range y.Rows() {
					for key := range y.Row(row) {
						if hides(first+row%n, key) || s.Mask.Masked(row/(y.Shape[1]*n), max(first+row%n, key), key) {
							y.Row(row)[key] = -math.MaxFloat32
						}
					}
				}
				return y
			}
		}
	}
	scaling := func(by float64) func(f *faulty) {
		return func(f *faulty) {
			scores := f.scores
			f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
				return scores(q, k, first, n, &model.Scoring{By: float32(by), Mask: s.Mask})
			}
		}
	}
	// weighing gives each pair of a token and an expert another weight
	weighing := func(of func(w []float32, experts []int, slot, k int) float32) func(f *faulty) {
		return func(f *faulty) {
			combine := f.combine
			f.combine = func(weight *activation, p parts, order config.RoutedSum) *activation {
				experts, k := make([]int, len(weight.Values)), weight.Width()
				for _, part := range p {
					for _, slot := range part.Slots {
						experts[slot] = part.Expert
					}
				}
				other := each(weight, func(v float32) float32 { return v })
				for slot := range other.Values {
					other.Values[slot] = of(weight.Values, experts, slot, k)
				}
				return combine(other, p, order)
			}
		}
	}
	dropping := func(drops func(experts []int, slot, k int) bool) func(f *faulty) {
		return weighing(func(w []float32, experts []int, slot, k int) float32 {
			if drops(experts, slot, k) {
				return 0
			}
			return w[slot]
		})
	}
	inRow := func(w []float32, slot, k int) []float32 { return slices.Clone(w[slot/k*k:][:k]) }
	order := func(experts []int, slot int) (n int) { // of the pair among its expert's
		for _, e := range experts[:slot] {
			if e == experts[slot] {
				n++
			}
		}
		return n
	}
	shared := func(by float32) func(f *faulty) {
		return func(f *faulty) {
			var routed *activation
			combine, add := f.combine, f.add
			f.combine = func(weight *activation, p parts, order config.RoutedSum) *activation {
				routed = combine(weight, p, order)
				return routed
			}
			f.add = func(x, z *activation) *activation {
				if routed != nil && slices.Equal(x.Values, routed.Values) {
					z = f.Scale(z, by)
				}
				return add(x, z)
			}
		}
	}
	activating := func(in string, of func(g float64) float64) func(f *faulty) {
		return func(f *faulty) {
			linear, swiGLU, last := f.linear, f.swiGLU, ""
			f.linear = func(x *activation, l *model.Linear) *activation {
				last = l.Weight.Name
				return linear(x, l)
			}
			f.swiGLU = func(gate, up *activation) *activation {
				if !strings.Contains(last, in) {
					return swiGLU(gate, up)
				}
				y := each(gate, func(v float32) float32 { return float32(of(float64(v))) })
				for i := range y.Values {
					y.Values[i] *= up.Values[i]
				}
				return y
			}
		}
	}
	positions := func(of func(i int) int) func(f *faulty) {
		return func(f *faulty) {
			tables := f.tables
			f.tables = func(r *model.Rotary) (cos, sin *activation) {
				other := *r
				other.Cos, other.Sin = slices.Clone(r.Cos), slices.Clone(r.Sin)
				for i, angle := range r.Angles[r.Half : 2*r.Half] {
					for t := range len(r.Cos) / r.Half {
						sin, cos := math.Sincos(float64(float32(of(t)) * angle))
						other.Cos[t*r.Half+i], other.Sin[t*r.Half+i] = float32(cos), float32(sin)
					}
				}
				return tables(&other)
			}
		}
	}
	// normIn hands on what the layer's norm of that name reads
	normIn := func(f *faulty, norm string, keep func(x, y *activation)) {
		rmsNorm := f.rmsNorm
		f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
			y := rmsNorm(x, w, eps)
			if strings.HasSuffix(w.Name, norm+".weight") {
				keep(x, y)
			}
			return y
		}
	}
	faults := map[string]struct {
		fixture, stage, cause string
		engine
	}{
		"the scale of absorbed heads": {v3, attended, "attention-scale: the engine multiplied scores by 0.111803, here they are by 0.144338: " +
			"1/√(kv_lora_rank + qk_rope_head_dim)", engine{fault: scaling(math.Pow(80, -0.5))}},
		"the scale twice": {v3, attended, "attention-scale: the engine multiplied scores by 0.0208333, here they are by 0.144338: " +
			"1/qk_head_dim: 1/√qk_head_dim, twice", engine{fault: scaling(1.0 / 48)}},
		"another scale": {v3, attended, "attention-scale: the engine multiplied scores by 0.15, here they are by 0.144338",
			engine{fault: scaling(0.15)}},
		"a cap": {v3, attended, "logit-softcap: the engine's scores s are 30·tanh(s/30)", engine{fault: func(f *faulty) {
			scores := f.scores
			f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
				return each(scores(q, k, first, n, s), func(v float32) float32 {
					if v < -1e30 {
						return v
					}
					return float32(30 * math.Tanh(float64(v)/30))
				})
			}
		}}},
		"the next key": {v3, attended, "causal-mask: the engine's queries see the key of the next token, too",
			engine{fault: hiding(func(query, key int) bool { return key > query+1 })}},
		"all keys": {v3, attended, "causal-mask: the engine's queries see the keys of all later tokens",
			engine{fault: hiding(func(query, key int) bool { return false })}},
		"a window": {v3, attended, "sliding-window: the engine's queries see 7 keys at most, themselves among them",
			engine{fault: hiding(func(query, key int) bool { return key > query || query-key >= 7 })}},
		"a lost chunk": {v3, attended, "prefix-lost: the engine's queries from token 8 on see no key before it: the first chunk is lost",
			engine{fault: hiding(func(query, key int) bool { return key > query || query >= 8 && key < 8 })}},
		"chunks alone": {v3, attended, "prefix-lost: the engine's queries see the keys of their chunk of 5 tokens alone",
			engine{fault: hiding(func(query, key int) bool { return key > query || query/5 != key/5 })}},
		"without the newest key": {v3, attended, "newest-key: the engine's queries from token 9 on do not see their own key",
			engine{fault: hiding(func(query, key int) bool { return key > query || query >= 9 && key == query })}},
		"padding seen": {v3, attended, "padding-mask: the engine lessens the scores of padding by 10: its queries see padding",
			engine{fault: func(f *faulty) {
				scores := f.scores
				f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
					y := scores(q, k, first, n, &model.Scoring{By: s.By})
					for row := range y.Rows() {
						b, query := row/(y.Shape[1]*n), first+row%n
						for key := range y.Row(row) {
							if key > query {
								y.Row(row)[key] = -math.MaxFloat32
							} else if f.in.IsPadding(b*f.in.Seq + key) {
								y.Row(row)[key] -= 10
							}
						}
					}
					return y
				}
			}}},
		"packed sequences": {v3, attended, "sequences-mixed: the engine's queries see the keys of the sequences before theirs, too: packed",
			engine{fault: func(f *faulty) {
				// joined has the matrices of all sequences, [rows, width], one behind or beside the other, in each one's place
				joined := func(x *activation, beside bool) *activation {
					batch, heads, rows, width := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
					y := &activation{Shape: []int{batch, heads, batch * rows, width}, DType: x.DType}
					if beside {
						y.Shape = []int{batch, heads, rows, batch * width}
					}
					for h := range batch * heads {
						of := func(b int) []float32 { return x.Values[(b*heads+h%heads)*rows*width:][:rows*width] }
						for row := range rows {
							for b := range batch {
								if beside {
									y.Values = append(y.Values, of(b)[row*width:][:width]...)
								} else if row == 0 {
									y.Values = append(y.Values, of(b)...)
								}
							}
						}
					}
					return y
				}
				scores, context := f.scores, f.context
				f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
					y := scores(q, joined(k, false), first, n, &model.Scoring{By: s.By, Divides: s.Divides})
					for row := range y.Rows() {
						b, query := row/(y.Shape[1]*n), first+row%n
						for key := range y.Row(row) {
							if of := key / f.in.Seq; of > b || f.in.IsPadding(key) || of == b && key%f.in.Seq > query {
								y.Row(row)[key] = -math.MaxFloat32
							}
						}
					}
					return y
				}
				f.context = func(probs, vT *activation) *activation { return context(probs, joined(vT, true)) }
			}}},
		"sums of two tokens": {glm, routed, "rows-of-others: the engine adds the routed sums of other tokens to those of its tokens: ",
			engine{fault: func(f *faulty) {
				combine := f.combine
				f.combine = func(weight *activation, p parts, order config.RoutedSum) *activation {
					y := combine(weight, p, order)
					both := each(y, func(v float32) float32 { return v })
					for row := range y.Rows() {
						for i, v := range y.Row((row + y.Rows()/2) % y.Rows()) {
							both.Row(row)[i] += v
						}
					}
					return both
				}
			}}},
		"the token itself": {"v3-mtp", mtp2 + "enorm.output", "mtp-token: the engine's prediction layer embeds the token before the one",
			engine{fault: func(f *faulty) {
				rmsNorm := f.rmsNorm
				f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
					if strings.HasSuffix(w.Name, "enorm.weight") {
						rolled := each(x, func(v float32) float32 { return v })
						seq := x.Rows() / f.in.Batch
						for row := range x.Rows() {
							copy(rolled.Row(row), x.Row(row/seq*seq+(row+seq-1)%seq))
						}
						x = rolled
					}
					return rmsNorm(x, w, eps)
				}
			}}},
		"the hidden state before the norm": {"v3-mtp", mtp2 + "hnorm.output", "mtp-carry: the engine's prediction layer gets the hidden state without model.norm",
			engine{fault: func(f *faulty) {
				var raw *activation
				rmsNorm := f.rmsNorm
				f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
					if strings.HasSuffix(w.Name, "model.norm.weight") {
						raw = each(x, func(v float32) float32 { return v })
					} else if strings.HasSuffix(w.Name, "hnorm.weight") {
						other, seq := each(x, func(v float32) float32 { return v }), f.in.Seq
						for row := range x.Rows() {
							copy(other.Row(row), raw.Row(row/(seq-1)*seq+row%(seq-1)))
						}
						x = other
					}
					return rmsNorm(x, w, eps)
				}
			}}},
		"experts of a rank": {v3, routed, "experts-missing: the engine's routed sums lack experts ",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return experts[slot] >= 16 })}},
		"one expert": {v3, routed, "experts-missing: the engine's routed sums lack expert 3",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return experts[slot] == 3 })}},
		"the last choice": {v3, routed, "experts-missing: the engine's routed sums lack the experts in place 3 of topk_idx",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return slot%k == 3 })}},
		"a capacity": {v3, routed, "experts-missing: the engine's routed sums lack an expert's tokens behind its first 2, as with a capacity",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return order(experts, slot) >= 2 })}},
		"two pairs": {v3, routed, "experts-missing: the engine's routed sums lack expert ",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return slot == 2 || slot == 5*k })}},
		"nothing": {v3, routed, "experts-missing: the engine's routed sums lack the outputs of all experts",
			engine{fault: dropping(func(experts []int, slot, k int) bool { return true })}},
		"experts twice": {v3, routed, "experts-repeated: the engine's routed sums have twice experts ",
			engine{fault: weighing(func(w []float32, experts []int, slot, k int) float32 {
				if experts[slot] < 8 {
					return 2 * w[slot]
				}
				return w[slot]
			})}},
		"no weights": {v3, routed, "experts-unweighted: the engine adds up the experts' outputs without their weights",
			engine{fault: weighing(func(w []float32, experts []int, slot, k int) float32 { return 1 })}},
		"weights by expert": {v3, routed, "weights-of-others: the engine gives the experts in ascending order the weights in the order of topk_idx",
			engine{fault: weighing(func(w []float32, experts []int, slot, k int) float32 {
				at, _ := slices.BinarySearch(slices.Sorted(slices.Values(experts[slot/k*k:][:k])), experts[slot])
				return inRow(w, slot, k)[at]
			})}},
		"weights by size": {v3, routed, "weights-of-others: the engine gives the experts in the order of topk_idx the weights in descending order",
			engine{fault: weighing(func(w []float32, experts []int, slot, k int) float32 {
				row := inRow(w, slot, k)
				slices.SortFunc(row, func(a, b float32) int { return cmp.Compare(b, a) })
				return row[slot%k]
			})}},
		"weights of the token before": {v3, routed, "weights-of-others: the engine gives the experts of a token the weights of the token before it",
			engine{fault: weighing(func(w []float32, experts []int, slot, k int) float32 { return w[max(slot-k, slot%k)] })}},
		"shared experts twice":  {v3, moe1 + "output", "shared-experts: the engine adds shared experts twice", engine{fault: shared(2)}},
		"shared experts absent": {v3, moe1 + "output", "shared-experts: the engine leaves out shared experts", engine{fault: shared(0)}},
		"shared experts scaled": {v3, moe1 + "output", "shared-experts: the engine multiplies shared experts with routed_scaling_factor",
			engine{fault: shared(2.5)}},
		"GELU": {v3, "model.layers.0.mlp.output", "activation: the engine's activation is GELU, here it is SiLU",
			engine{fault: activating("", func(g float64) float64 { return g / 2 * math.Erfc(-g/math.Sqrt2) })}},
		"ReLU of experts": {v3, routed, "activation: the engine's activation is ReLU, here it is SiLU",
			engine{fault: activating(".mlp.experts.", func(g float64) float64 { return max(0, g) })}},
		"positions again": {glm, pack.RotaryCos, "positions: the engine's positions begin again at 0 at token 9",
			engine{fault: positions(func(i int) int { return i % 9 })}},
		"positions from 1": {glm, pack.RotaryCos, "positions: the engine's positions begin at 1",
			engine{fault: positions(func(i int) int { return i + 1 })}},
		"the residual normed": {v3, "model.layers.0.post_attention_layernorm.output",
			"residual-normed: the engine adds the output of attention to its normed input, here to the input before input_layernorm",
			engine{fault: func(f *faulty) {
				var in, normed *activation
				normIn(f, "input_layernorm", func(x, y *activation) { in, normed = x, y })
				add := f.add
				f.add = func(x, z *activation) *activation {
					if x == in {
						x = normed
					}
					return add(x, z)
				}
			}}},
		"the router before the norm": {v3, moe1 + "gate.logits",
			"router-input: the engine's router reads its input before post_attention_layernorm, here behind it",
			engine{fault: func(f *faulty) {
				var in *activation
				normIn(f, "post_attention_layernorm", func(x, _ *activation) { in = f.Reshape(x, x.Rows(), x.Width()) })
				linear := f.linear
				f.linear = func(x *activation, l *model.Linear) *activation {
					if strings.HasSuffix(l.Weight.Name, "mlp.gate.weight") {
						x = in
					}
					return linear(x, l)
				}
			}}},
		"the router's logits in BF16": {v3, moe1 + "gate.logits",
			"router-bf16: the engine rounds the router's logits to BF16, here they are in float32",
			engine{fault: func(f *faulty) {
				linear := f.linear
				f.linear = func(x *activation, l *model.Linear) *activation {
					if y := linear(x, l); !strings.HasSuffix(l.Weight.Name, "mlp.gate.weight") {
						return y
					} else {
						return each(y, func(v float32) float32 { return tensor.Rounded(v, tensor.BF16) })
					}
				}
			}}},
		"rows of the token before": {glm, "model.layers.1.input_layernorm.output",
			"rows-of-others: the engine's layer 1 reads the rows of other tokens: each that of the token before it",
			engine{fault: func(f *faulty) {
				rmsNorm := f.rmsNorm
				f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
					if w.Name == "model.layers.1.input_layernorm.weight" {
						for t := x.Rows() - 1; t > 0; t-- { // the residual, too
							copy(x.Row(t), x.Row(t-1))
						}
					}
					return rmsNorm(x, w, eps)
				}
			}}},
		"physical slots": {v3, moe1 + "gate.topk_idx", "expert-slots: the engine's topk_idx has other numbers than the router's rows, " +
			"such as physical slots of a load balancer: ", engine{recorded: func(t *testing.T, p *pack.Pack) {
			for name, e := range p.Replaced {
				if strings.HasSuffix(name, "topk_idx") {
					var data []byte
					for _, id := range must(p.Ints(name)) {
						data = binary.LittleEndian.AppendUint64(data, uint64((id*5+3)%32))
					}
					e.Data = data
					p.Replaced[name] = e
				}
			}
		}}},
		"no norms of heads": {glm, "model.layers.0.self_attn.q_norm.output", "qk-norm: the engine has no norms of queries and keys", engine{fault: func(f *faulty) {
			rmsNorm := f.rmsNorm
			f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
				if strings.HasSuffix(w.Name, "q_norm.weight") || strings.HasSuffix(w.Name, "k_norm.weight") {
					return each(x, func(v float32) float32 { return v })
				}
				return rmsNorm(x, w, eps)
			}
		}}},
		"heads by turns": {glm, attended, "kv-heads: the engine's head h reads the keys and values of head h mod 2, here of head h div 2",
			engine{fault: func(f *faulty) { // groups of 2 heads
				turned := func(x *activation) *activation {
					y := each(x, func(v float32) float32 { return v })
					n := len(x.Values) / x.Shape[0] / x.Shape[1]
					for b := range x.Shape[0] {
						at := b * x.Shape[1] * n
						copy(y.Values[at+n:at+2*n], x.Values[at+2*n:])
						copy(y.Values[at+2*n:at+3*n], x.Values[at+n:])
					}
					return y
				}
				scores, context := f.scores, f.context
				f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
					return scores(turned(q), k, first, n, s)
				}
				f.context = func(probs, vT *activation) *activation { return turned(context(probs, vT)) }
			}}},
		"norms by rank": {"minimax-m2", "model.layers.0.self_attn.q_norm.output", "qk-norm: the engine's norms of queries and keys are of each of 2 parts of the heads by itself",
			engine{fault: func(f *faulty) {
				rmsNorm := f.rmsNorm
				f.rmsNorm = func(x *activation, w *model.Weight, eps float64) *activation {
					y := rmsNorm(x, w, eps)
					if strings.HasSuffix(w.Name, "q_norm.weight") || strings.HasSuffix(w.Name, "k_norm.weight") {
						of, n := must(w.Float32s(nil)), x.Width()/2
						for row := range x.Rows() {
							for part := range 2 {
								sum := 0.0
								for _, v := range x.Row(row)[part*n:][:n] {
									sum += float64(v) * float64(v)
								}
								r := 1 / math.Sqrt(sum/float64(n)+eps)
								for i := part * n; i < (part+1)*n; i++ {
									y.Row(row)[i] = float32(float64(x.Row(row)[i])*r) * of[i]
								}
							}
						}
					}
					return y
				}
			}}},
	}
	for i, name := range slices.Sorted(maps.Keys(faults)) {
		c := faults[name]
		if i%5 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkpoint, p := open(t, c.fixture+"/golden-f32")
			c.inputs = engineForms["F32"]
			r := run(t, checkpoint.Config, checkpoint, c.trace(t, checkpoint.Config, checkpoint, p), verify.Options{})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, c.stage, *r.FirstDivergence)
			var causes []string
			for _, cause := range r.Causes {
				causes = append(causes, cause.String())
			}
			require.Len(t, causes, 1, "%v %v", causes, r.Hints)
			require.True(t, strings.HasPrefix(causes[0], c.cause), "%v", causes)
		})
	}
}

// inE4M3 is a number in E4M3 in steps, in a dtype.
func inE4M3(v float32, step float64, d tensor.DType) float32 {
	code := max(-448, min(float64(v/float32(step)), 448))
	if code == 0 {
		return 0
	}
	unit := math.Exp2(max(math.Floor(math.Log2(math.Abs(code))), -6) - 3)
	return tensor.Rounded(float32(math.RoundToEven(code/unit)*unit*float64(float32(step))), d)
}

// cachingLatents rounds latents to E4M3 in steps, 0 for a 448th of a layer's largest latent, and the key's part with RoPE
// unless that stays as it is.
func cachingLatents(step float64, rotated bool) func(f *faulty) {
	var dtype tensor.DType
	ofLayer := step == 0
	code := func(v float32) float32 { return inE4M3(v, step, dtype) }
	return func(f *faulty) {
		linear, scores := f.linear, f.scores
		f.linear = func(x *activation, l *model.Linear) *activation {
			if strings.HasSuffix(l.Weight.Name, "kv_b_proj.weight") {
				if dtype = x.DType; ofLayer {
					step = float64(max(slices.Max(x.Values), -slices.Min(x.Values)) / 448)
				}
				x = each(x, code)
			}
			return linear(x, l)
		}
		f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
			if rotated {
				k = each(k, func(v float32) float32 { return v })
				for row := range k.Rows() {
					for i, v := range k.Row(row)[32:] {
						k.Row(row)[32+i] = code(v)
					}
				}
			}
			return scores(q, k, first, n, s)
		}
	}
}

// TestLatentCaches_every: a cache of latents in E4M3 passes if it is declared; else it is the cause, with its step, with the
// numbers that it clips, and with what is not rounded.
func TestLatentCaches_every(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		step     float64
		rotated  bool
		declares []string
		cause    string
		attended bool // the trace has no product of latents
		bf16     bool
	}{
		{step: 0.0123, rotated: true, declares: []string{"fp8:0.0123"}},
		{step: 0.25, declares: []string{"fp8:0.25"}, cause: "cache of latents holds them, and not the key's part with RoPE, and declares fp8:0.25"},
		// from here on with -every alone
		{step: 0.001, rotated: true, cause: " numbers are beyond 0.448, the largest number there, and clipped, and declares nothing"},
		{step: 0x1p-6, rotated: true, attended: true, cause: "latent-cache: the engine rounded latents to fp8:0.015625, as a cache"},
		{rotated: true, attended: true, bf16: true, cause: "latent-cache: the engine rounded latents to fp8:0.0"},
		{step: 1, rotated: true, declares: []string{"fp8"}},
		{step: 1, rotated: true, cause: "latent-cache: the engine rounded latents to fp8, as a cache of latents holds them, and declares nothing"},
		{step: 0.0123, rotated: true, declares: []string{"f32"},
			cause: "latent-cache: the engine rounded latents to fp8:0.0123, as a cache of latents holds them, and declares f32"},
		{step: 0.25, declares: []string{"fp8:0.25", "f32"}},
		{rotated: true, attended: true, cause: "latent-cache: the engine rounded latents to fp8:0.0"},
		{step: 1, rotated: true, attended: true, bf16: true, cause: "latent-cache: the engine rounded latents to fp8, as a cache"},
		{step: 0x1p-6, rotated: true, attended: true, bf16: true, declares: []string{"fp8:0.015625"}},
		{step: 0x1p-6, rotated: true, attended: true, bf16: true, cause: "latent-cache: the engine rounded latents to fp8:0.015625, as a cache"},
	} {
		if i > 1 && !configtest.Every(t) {
			break
		}
		checkpoint, p := open(t, "v3-trained/golden-f32")
		e := engine{inputs: engineForms["F32"], fault: cachingLatents(c.step, c.rotated), bf16: c.bf16, declares: &pack.Arithmetic{
			Activations: engineForms["F32"], Cache: "f32", Attention: []string{pack.Eager}, LatentCache: c.declares}}
		if c.attended {
			e.recorded = func(_ *testing.T, p *pack.Pack) {
				maps.DeleteFunc(p.Manifest.Tensors, func(name string, _ pack.Entry) bool { return strings.HasSuffix(name, ".kv_b_proj.output") })
			}
		}
		r := run(t, checkpoint.Config, checkpoint, e.trace(t, checkpoint.Config, checkpoint, p), verify.Options{})
		if c.cause == "" {
			require.Equal(t, report.Pass, r.Verdict, "%v: %v %v", c, r.FirstDivergence, r.Reasons)
			continue
		}
		require.Equal(t, report.Fail, r.Verdict)
		require.Len(t, r.Causes, 1, "%v", c)
		require.Contains(t, r.Causes[0].String(), c.cause)
	}
}

// TestCachesOfKeysAndValues_every: a cache of keys and values in E4M3 passes if it is declared; else it is the cause, with its step.
// Queries and probabilities are not rounded with it.
func TestCachesOfKeysAndValues_every(t *testing.T) {
	t.Parallel()
	for _, fixture := range []string{"glm4-moe", "v1-base", "v3-trained"} {
		for _, bf16 := range []bool{false, true} {
			for word, steps := range map[string]func(row, all []float32) float64{
				"fp8":          func(_, _ []float32) float64 { return 1 },
				"fp8:0.015625": func(_, _ []float32) float64 { return 0x1p-6 },
				"fp8-tensor":   func(_, all []float32) float64 { return float64(max(slices.Max(all), -slices.Min(all)) / 448) },
				"fp8-token":    func(row, _ []float32) float64 { return float64(max(slices.Max(row), -slices.Min(row)) / 448) },
			} {
				tried := fixture == "glm4-moe" && !bf16 && word == "fp8-token" || fixture == "v3-trained" && bf16 && word == "fp8:0.015625"
				if !tried && !configtest.Every(t) {
					continue
				}
				coded := func(x *activation) *activation {
					x = each(x, func(v float32) float32 { return v })
					for all, r := slices.Clone(x.Values), 0; r < x.Rows(); r++ {
						if step := steps(x.Row(r), all); step > 0 {
							for i, v := range x.Row(r) {
								x.Row(r)[i] = inE4M3(v, step, x.DType)
							}
						}
					}
					return x
				}
				turned := func(x *activation) *activation {
					y := each(x, func(v float32) float32 { return v })
					n := len(x.Shape)
					rows, cols := x.Shape[n-2], x.Shape[n-1]
					y.Shape = slices.Concat(x.Shape[:n-2], []int{cols, rows})
					for i, v := range x.Values {
						y.Values[i/(rows*cols)*rows*cols+i%cols*rows+i/cols%rows] = v
					}
					return y
				}
				e := engine{inputs: engineForms["F32"], bf16: bf16, declares: &pack.Arithmetic{}, fault: func(f *faulty) {
					scores, context := f.scores, f.context
					f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
						return scores(q, coded(k), first, n, s)
					}
					f.context = func(probs, vT *activation) *activation { return context(probs, turned(coded(turned(vT)))) }
				}}
				checkpoint, p := open(t, fixture+"/golden-f32")
				p = e.trace(t, checkpoint.Config, checkpoint, p)
				layers := selected(t, text.Spans{{0, 1}})
				r := run(t, checkpoint.Config, checkpoint, p, verify.Options{Layers: layers})
				require.Len(t, r.Causes, 1, "%s %v %s", fixture, bf16, word)
				said := r.Causes[0].String()
				require.True(t, strings.HasPrefix(said, "cache-rounded: the engine rounded keys and values to "+word+", and declares nothing") ||
					strings.HasSuffix(said, "; the first values are the same in steps of "+strings.TrimPrefix(word, "fp8:")), said)
				p.Manifest.Arithmetic = &pack.Arithmetic{Cache: word, Attention: []string{pack.Eager}}
				r = run(t, checkpoint.Config, checkpoint, p, verify.Options{Undiagnosed: true, Layers: layers})
				if fixture == "v3-trained" && bf16 && strings.HasPrefix(word, "fp8-") { // 448ths of numbers in BF16 are near ties
					require.NotEqual(t, report.Fail, r.Verdict, "%s: %v", word, r.FirstDivergence)
					continue
				}
				require.Equal(t, report.Pass, r.Verdict, "%s %v %s: %v %v", fixture, bf16, word, r.FirstDivergence, r.Reasons)
			}
		}
	}
}

// TestNoiseIsNoCache_every: keys and values that are some percent off are not put down to a coarse cache, whose bounds allow for that.
func TestNoiseIsNoCache_every(t *testing.T) {
	t.Parallel()
	for i, fixture := range []string{"glm4-moe", "v3-trained"} {
		if i > 0 && !configtest.Every(t) {
			break
		}
		checkpoint, p := open(t, fixture+"/golden-f32")
		noisy := func(x *activation) *activation {
			return each(x, func(v float32) float32 {
				return tensor.Rounded(v*(1+float32(math.Sin(float64(v)*1e4))*0.03), tensor.BF16)
			})
		}
		e := engine{inputs: engineForms["F32"], bf16: true, declares: &pack.Arithmetic{Activations: engineForms["F32"], Cache: "bf16",
			Attention: []string{pack.Eager}}, fault: func(f *faulty) {
			scores, context := f.scores, f.context
			f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
				return scores(q, noisy(k), first, n, s)
			}
			f.context = func(probs, vT *activation) *activation { return context(probs, noisy(vT)) }
		}}
		p = e.trace(t, checkpoint.Config, checkpoint, p)
		r := run(t, checkpoint.Config, checkpoint, p, verify.Options{Layers: selected(t, text.Spans{{0, 1}})})
		require.Equal(t, report.Fail, r.Verdict)
		require.Empty(t, r.Causes)
	}
}

// TestNextOfEngines: without a cause the report advises about the engine's operation where all layers differ, and where no
// weight took part; about weights that an engine kept where one layer differs.
func TestNextOfEngines(t *testing.T) {
	t.Parallel()
	noisy := func(w *model.Weight) {
		w.Data = slices.Clone(w.Data)
		for i := 0; i < len(w.Data); i += 2 {
			w.Data[i] ^= byte(i*i>>3) & 15
		}
	}
	noisyExperts := func(layers ...int) func(m *model.DeepseekForCausalLM) {
		return func(m *model.DeepseekForCausalLM) {
			for _, l := range layers {
				for e := range m.Model.Layers[l].MoE.Experts {
					noisy(&m.Model.Layers[l].MoE.Experts[e].DownProj.Weight)
				}
			}
		}
	}
	for _, c := range []struct {
		engine
		text, command string
	}{
		{engine{model: noisyExperts(2)}, "the stage differs in 1 of 3 layers: if the engine got new weights while it ran, it may have " +
			"kept old ones: verify OLD, the checkpoint before; else compare ", "dsmoe verify OLD TRACE --layers 2"},
		{engine{model: noisyExperts(1, 2, 3)}, "the stage differs in all 3 layers that have it: look at the engine's operation first; " +
			"then compare ", "dsmoe diff ORIGINAL CHECKPOINT --include 'model.layers.1.mlp.experts.*'"},
		{engine{fault: func(f *faulty) {
			scores := f.scores
			f.scores = func(q, k *activation, first, n int, s *model.Scoring) *activation {
				return each(scores(q, k, first, n, s), func(v float32) float32 { return v + float32(math.Sin(float64(9*max(v, -99))))/4 })
			}
		}}, "no weight took part in this stage: look at the engine's operation, and at what it makes of config.json", ""},
	} {
		checkpoint, p := open(t, "v3-trained/golden-f32")
		c.inputs = engineForms["F32"]
		p = c.trace(t, checkpoint.Config, checkpoint, p)
		r := run(t, checkpoint.Config, checkpoint, p, verify.Options{})
		require.Empty(t, r.Causes)
		require.True(t, strings.HasPrefix(r.Next.Text, c.text), r.Next.Text)
		require.Equal(t, c.command, r.Next.Command)
		var parts []*report.Report
		for i := range 3 {
			o := verify.Options{Undiagnosed: true, Part: &report.Part{Index: i + 1, Of: 3}}
			parts = append(parts, run(t, checkpoint.Config, checkpoint, p, o))
		}
		merged, _, err := verify.Merge(parts)
		require.NoError(t, err)
		require.Equal(t, r.Next, merged.Next)
	}
}

// TestSkippedLayer: a trace that has a layer's output alone, equal to its input, is refused with that.
func TestSkippedLayer(t *testing.T) {
	t.Parallel()
	checkpoint, p := open(t, "v3-trained/golden-f32")
	p = engine{inputs: engineForms["F32"]}.trace(t, checkpoint.Config, checkpoint, p)
	for name := range p.Manifest.Tensors {
		if strings.HasPrefix(name, "model.layers.2.") && name != "model.layers.2.output" {
			delete(p.Manifest.Tensors, name)
		}
	}
	p.Replaced["model.layers.2.output"] = p.Replaced["model.layers.1.output"]
	_, err := verify.Run(t.Context(), checkpoint.Config, checkpoint, p, verify.Options{})
	require.ErrorContains(t, err, "model.layers.2.output: the only stage of the layer, and equal to its input: the engine skipped the layer")
}
