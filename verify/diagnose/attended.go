package diagnose

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of attention that no number of config.json makes: the scale of scores, which keys a query sees, which heads
// read which keys, and norms of queries and keys.

// wrongFrom returns the least position of a wrong row in its sequence, and the least number of compared rows before one:
// 0 for the first row, whose query sees one key. They are -1 if rows are not known.
func (f *Failure) wrongFrom() (position, before int) {
	position, before = -1, -1
	seq := f.Seq()
	at, of := 0, -1 // rows of the sequence so far
	for i, wrong := range f.Beyond {
		if s := f.Rows[i] / seq; s != of {
			at, of = 0, s
		}
		if wrong && (before < 0 || at < before) {
			before = at
		}
		if p := f.Rows[i] % seq; wrong && (position < 0 || p < position) {
			position = p
		}
		at++
	}
	return position, before
}

// plainScores reports whether the failed stage is what attention gives whose scores are those of all earlier keys.
func (f *Failure) plainScores() bool {
	return slices.Contains(attendStages, f.Kind) && f.Layer >= 0 && f.Want != nil && !f.Model.Config.HasIndexer() &&
		!f.Model.Config.Windowed()
}

// scoreScales are the scale of scores, and a cap of them, as numbers to solve for. They change every row but the first,
// which sees one key.
func (f *Failure) scoreScales() []number {
	if _, before := f.wrongFrom(); !f.plainScores() || before != 1 {
		return nil
	}
	c, ours := f.Model.Config, float64(model.SoftmaxScale(f.Model.Config))
	known := []struct {
		is    float64
		words string
	}{
		{1, "no scale"},
		{1 / float64(c.QKHeadDim()), "1/qk_head_dim: 1/√qk_head_dim, twice"},
		{1 / math.Sqrt(float64(c.Attention.KVLoraRank+c.Attention.QKRopeHeadDim)), "1/√(kv_lora_rank + qk_rope_head_dim)"},
		{1 / math.Sqrt(float64(c.Attention.KVLoraRank)), "1/√kv_lora_rank"},
		{1 / math.Sqrt(float64(c.Attention.QKNopeHeadDim)), "1/√qk_nope_head_dim"},
		{1 / math.Sqrt(float64(c.Attention.QKRopeHeadDim)), "1/√qk_rope_head_dim"},
		{1 / math.Sqrt(float64(c.ValueHeadDim())), "1/√v_head_dim"},
		{1 / math.Sqrt(float64(c.QKHeadDim())), "1/√qk_head_dim, without the factor of YaRN"},
		{1 / math.Sqrt(float64(c.HiddenSize)), "1/√hidden_size"},
	}
	n := number{key: "scale", ours: ours, starts: powers(ours/8, 2, 7), smooth: true, digits: 9}
	for _, k := range known {
		if tensor.IsFinite(k.is) && math.Abs(k.is/ours-1) > 1e-6 {
			n.starts = append(n.starts, k.is)
		}
	}
	n.mistake = func(value float64) mistake {
		return mistake{id: "attention-scale", kinds: []string{f.kind()}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.scores = func(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value {
					return a.Scores(q, k, first, n, &model.Scoring{By: float32(value), Mask: s.Mask})
				}
			})
			words := fmt.Sprintf("the reference multiplied scores by %.6g, here they are by %.6g", value, ours)
			for _, k := range known {
				if math.Abs(k.is/value-1) < 1e-6 {
					return words + ": " + k.words
				}
			}
			return words
		}}
	}
	limit := number{key: "cap", ours: math.Inf(1), starts: powers(5, 2, 6), smooth: true, digits: 4}
	limit.mistake = func(value float64) mistake {
		return mistake{id: "logit-softcap", kinds: []string{f.kind()}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.scores = func(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value {
					y := a.Scores(q, k, first, n, s)
					for i, score := range y.Values {
						if !bounds.Hidden(score) {
							capped := math.Tanh(float64(score) / value)
							y.Set(i, capped*value, y.Variance(i)+bounds.Sq(capped*value))
						}
					}
					return y
				}
			})
			return fmt.Sprintf("the reference's scores s are %g·tanh(s/%[1]g)", value)
		}}
	}
	return []number{n, limit}
}

// maskMistakes are queries that see other keys.
func maskMistakes(f *Failure) (list []mistake) {
	from, before := f.wrongFrom()
	if !f.plainScores() || before < 0 {
		return nil
	}
	add := func(id, words string, hides func(m *model.Mask, batch, query, key int) bool) {
		list = append(list, mistake{id: id, kinds: []string{f.kind()}, unless: id, undo: func(x *Trial) string {
			x.scored(nil, func(y *bounds.Value, m *model.Mask, batch, query, key, at int) {
				if hides(m, batch, query, key) {
					y.Set(at, float64(m.Lowest), 0)
				}
			})
			return words
		}})
	}
	if before == 0 {
		add("causal-mask", "the reference's queries see the key of the next token, too",
			func(m *model.Mask, batch, query, key int) bool {
				return m.Masked(batch, max(query, key), key) || key > query+1
			})
		add("causal-mask", "the reference's queries see the keys of all later tokens",
			func(m *model.Mask, batch, query, key int) bool { return m.Masked(batch, max(query, key), key) })
	} else {
		if f.Model.Config.Window(f.Layer) == 0 { // else it is a number of config.json
			add("sliding-window", fmt.Sprintf("the reference's queries see %d keys at most, themselves among them", before),
				func(m *model.Mask, batch, query, key int) bool {
					return m.Masked(batch, query, key) || query-key >= before
				})
		}
		add("prefix-lost", fmt.Sprintf("the reference's queries from token %d on see no key before it: "+
			"the first chunk is lost", from), func(m *model.Mask, batch, query, key int) bool {
			return m.Masked(batch, query, key) || key < from && query >= from
		})
		add("prefix-lost", fmt.Sprintf("the reference's queries see the keys of their chunk of %d tokens alone", from),
			func(m *model.Mask, batch, query, key int) bool {
				return m.Masked(batch, query, key) || key/from != query/from
			})
		add("newest-key", fmt.Sprintf("the reference's queries from token %d on do not see their own key", from),
			func(m *model.Mask, batch, query, key int) bool {
				return m.Masked(batch, query, key) || key == query && query >= from
			})
	}
	if f.In.AttentionMask != nil {
		add("padding-mask", "the reference hid the keys of as many tokens on the other side as are padding",
			func(m *model.Mask, batch, query, key int) bool {
				return key > query || m.In.AttentionMask[(batch+1)*m.In.Seq-1-key] == 0
			})
		for _, less := range []float64{1, 10, 100} {
			list = append(list, mistake{id: "padding-mask", kinds: []string{f.kind()}, unless: "padding-mask", undo: func(x *Trial) string {
				x.scored(nil, func(y *bounds.Value, m *model.Mask, batch, query, key, at int) {
					if key <= query && m.In.IsPadding(batch*m.In.Seq+key) {
						y.Set(at, float64(y.Values[at])-less, y.Variance(at))
					} else if m.Masked(batch, query, key) {
						y.Set(at, float64(m.Lowest), 0)
					}
				})
				return fmt.Sprintf("the reference lessens the scores of padding by %g: its queries see padding", less)
			}})
		}
	}
	keys := f.In.Batch * f.In.Batch * f.Seq() * f.Model.Config.Attention.NumAttentionHeads * f.Model.Config.QKHeadDim()
	if i := slices.Index(f.Beyond, true); i >= 0 && f.Rows[i] >= f.Seq() && keys <= mostMixed { // the first sequence is right
		list = append(list, mistake{id: "sequences-mixed", kinds: []string{f.kind()}, undo: func(x *Trial) string {
			if x.How != nil { // absorbed weights make keys of one sequence
				how := *x.How
				how.Attention = slices.DeleteFunc(slices.Clone(how.Attention), func(word string) bool { return word == pack.Absorbed })
				how.Rounding = maps.Clone(how.Rounding)
				delete(how.Rounding, bounds.AbsorbedQuery)
				x.How = &how
			}
			x.scored(everySequence, func(y *bounds.Value, m *model.Mask, batch, query, key, at int) {
				of := key / m.In.Seq
				if of > batch || m.In.IsPadding(key) || of == batch && m.Masked(batch, query, key%m.In.Seq) {
					y.Set(at, float64(m.Lowest), 0)
				}
			})
			return "the reference's queries see the keys of the sequences before theirs, too: packed sequences are not kept apart"
		}})
	}
	return list
}

// mostMixed is how many numbers keys of all sequences may have for each: 64 MB, and as much for their deviations.
const mostMixed = 1 << 24

// scored has scores of all keys, or of the keys and values that of makes of them, each changed by change: y's element at is
// that of a query and a key.
func (x *Trial) scored(of func(a bounds.Arithmetic, x *bounds.Value, keys int) *bounds.Value,
	change func(y *bounds.Value, m *model.Mask, batch, query, key, at int)) {
	x.change(func(a bounds.Arithmetic, o *operations) {
		o.scores = func(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value {
			open := *s
			if open.Mask = nil; of != nil {
				k = of(a, k, 2)
			}
			y := a.Scores(q, k, first, n, &open)
			for row := range y.Rows() {
				for key := range y.Width() { // a prediction layer has fewer than the input
					change(y, s.Mask, row/(y.Shape[1]*n), first+row%n, key, row*y.Width()+key)
				}
			}
			return y
		}
		if of != nil {
			o.context = func(probs, vT *bounds.Value) *bounds.Value { return a.Context(probs, of(a, vT, 3)) }
		}
	})
}

// everySequence gives each sequence of the batch the keys, or the values, of all sequences, one behind the other: x's axis keys
// counts them, behind those of the batch and of the heads.
func everySequence(a bounds.Arithmetic, x *bounds.Value, keys int) *bounds.Value {
	batch, heads, shape := x.Shape[0], x.Shape[1], slices.Clone(x.Shape)
	shape[keys] *= batch
	inner, each := 1, x.Shape[keys] // elements behind the axis
	for _, n := range x.Shape[keys+1:] {
		inner *= n
	}
	outer := x.Shape[2] * x.Shape[3] / inner / each // between heads and keys
	var order []int
	for i := range batch * heads * outer {
		for b := range batch {
			from := (b*heads*outer + i%(heads*outer)) * each * inner
			for at := range each * inner {
				order = append(order, from+at)
			}
		}
	}
	flat := a.Reshape(x, 1, len(x.Values))
	return a.Reshape(a.Move(model.OrderColumns([]int{1, len(order)}, order), flat), shape...)
}

// headMistakes are queries that read the keys and values of other heads, and norms of other parts of queries and keys.
func headMistakes(f *Failure) (list []mistake) {
	kinds := slices.Concat(attendStages, headNormStages)
	if !slices.Contains(kinds, f.Kind) || f.Layer < 0 || f.Model.Layer(f.Layer).SelfAttn == nil {
		return nil
	}
	c := f.Model.Config
	if heads, groups := c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads; groups > 1 && groups < heads {
		list = append(list, mistake{id: "kv-heads", kinds: attendStages, undo: func(x *Trial) string {
			there, back := make([]int, heads), make([]int, heads)
			for i := range there { // heads that read one group's keys side by side
				there[i] = i%(heads/groups)*groups + i/(heads/groups)
				back[there[i]] = i
			}
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.scores = func(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value {
					return a.Scores(headsInOrder(a, q, there), k, first, n, s)
				}
				o.context = func(probs, vT *bounds.Value) *bounds.Value {
					return headsInOrder(a, a.Context(probs, vT), back)
				}
			})
			return fmt.Sprintf("the reference's head h reads the keys and values of head h mod %d, here of head h div %d",
				groups, heads/groups)
		}})
	}
	if !c.Attention.UseQKNorm {
		return list
	}
	type norm func(a bounds.Arithmetic, x *bounds.Value, w *model.Weight, eps float64) *bounds.Value
	norms := func(words string, change norm) {
		list = append(list, mistake{id: "qk-norm", kinds: kinds, unless: "qk-norm", undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.rmsNorm = func(x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
					stage := pack.Parse(strings.TrimSuffix(w.Name, "weight") + "output")
					if !slices.Contains(headNormStages, stage.Within) {
						return a.RMSNorm(x, w, eps)
					}
					return change(a, x, w, eps)
				}
			})
			return words
		}})
	}
	norms("the reference has no norms of queries and keys",
		func(a bounds.Arithmetic, x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
			return a.Reshape(x, x.Shape...)
		})
	if c.Rules().Attention.QKNorm != config.AllHeads {
		return list
	}
	for parts := 2; parts <= c.Attention.NumAttentionHeads; parts++ {
		if c.Attention.NumAttentionHeads%parts != 0 || c.Attention.NumKeyValueHeads%parts != 0 {
			continue
		}
		norms(fmt.Sprintf("the reference's norms of queries and keys are of each of %d parts of the heads by itself, as "+
			"of %[1]d tensor parallel ranks, here of all heads", parts),
			func(a bounds.Arithmetic, x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
				return normOfParts(a, x, w, eps, parts)
			})
	}
	return list
}

// headsInOrder are the heads of x [batch, heads, rows, width] in another order.
func headsInOrder(a bounds.Arithmetic, x *bounds.Value, order []int) *bounds.Value {
	n := x.Shape[2] * x.Width()
	columns := make([]int, 0, len(order)*n)
	for _, head := range order {
		for i := range n {
			columns = append(columns, head*n+i)
		}
	}
	flat := a.Reshape(x, x.Shape[0], len(columns))
	return a.Reshape(a.Move(model.OrderColumns(flat.Shape, columns), flat), x.Shape...)
}

// normOfParts is RMSNorm of each of so many parts of a row by itself.
func normOfParts(a bounds.Arithmetic, x *bounds.Value, w *model.Weight, eps float64, parts int) *bounds.Value {
	n := x.Width() / parts
	apart := a.Reshape(x, append(slices.Clone(x.Shape[:len(x.Shape)-1]), parts, n)...)
	stored, _ := w.Float32s(nil) // loading has checked the dtype
	var y *bounds.Value
	for p := range parts {
		own := *w
		own.Tensor = vectorOf(stored[p*n:(p+1)*n], func(_ int, v float32) float32 { return v })
		z := a.RMSNorm(apart, &own, eps)
		if y == nil {
			y = z
		}
		for row := p; row < z.Rows(); row += parts {
			for i := row * n; i < (row+1)*n; i++ {
				y.Set(i, float64(z.Values[i]), z.Variance(i))
			}
		}
	}
	return a.Reshape(y, x.Shape...)
}
