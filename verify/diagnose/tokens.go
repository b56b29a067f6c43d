package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Rows of other tokens, positions and numbers of experts, read off a failed stage.

// tokenMistakes are layers' inputs, routed sums and RoPE's tables that have the rows of other tokens or positions.
func tokenMistakes(f *Failure) []mistake {
	switch {
	case f.Want == nil || !f.isFinite():
	case f.Kind == "input_layernorm.output" && f.Layer >= 0 && f.Layer < len(f.Model.Model.Layers):
		if order := f.rowOrder(); order != nil {
			return []mistake{{id: "rows-of-others", kinds: []string{f.kind()}, undo: func(x *Trial) string {
				x.Rows = order
				return fmt.Sprintf("the reference's layer %d reads the rows of other tokens: %s", f.Layer, f.describeRows(order))
			}}}
		}
	case f.Kind == pack.ExpertsOutput && f.Beside == nil:
		if order := f.rowOrder(); order != nil {
			return []mistake{{id: "rows-of-others", kinds: []string{f.kind()}, undo: func(x *Trial) string {
				x.change(func(a bounds.Arithmetic, o *operations) {
					o.combine = func(weight *bounds.Value, parts []model.Part[*bounds.Value], sum config.RoutedSum) *bounds.Value {
						y := a.Combine(weight, parts, sum)
						return a.Reshape(headsInOrder(a, a.Reshape(y, 1, y.Rows(), 1, y.Width()), order), y.Shape...)
					}
				})
				return "the reference's routed sums are those of other tokens: " + f.describeRows(order)
			}}}
		}
		more := *f // by how much sums are larger
		more.Want = slices.Clone(f.Want)
		for i, y := range f.Unrounded {
			more.Want[i] -= y
		}
		if order := more.rowOrder(); order != nil {
			return []mistake{{id: "rows-of-others", kinds: []string{f.kind()}, undo: func(x *Trial) string {
				x.change(func(a bounds.Arithmetic, o *operations) {
					o.combine = func(weight *bounds.Value, parts []model.Part[*bounds.Value], sum config.RoutedSum) *bounds.Value {
						y := a.Combine(weight, parts, sum)
						z := a.Reshape(headsInOrder(a, a.Reshape(y, 1, y.Rows(), 1, y.Width()), order), y.Shape...)
						for i := range z.Values {
							if row := i / z.Width(); order[row] == row {
								z.Set(i, 0, 0)
							}
						}
						return a.Add(y, z)
					}
				})
				return "the reference adds the routed sums of other tokens to those of its tokens: " + f.describeRows(order)
			}}}
		}
	case pack.Parse(f.Name).IsTable():
		return f.positionMistakes()
	}
	return nil
}

// rowOrder returns our row of each row of the golden, of all tokens, within the limits; nil if a wrong row of the golden
// is none of ours.
func (f *Failure) rowOrder() []int {
	n, ours := f.Got.Width(), f.Got.Rows()
	first := func(row int) float64 { return float64(f.Unrounded[row*n]) }
	sorted, widest := indices(ours), 0.0
	slices.SortFunc(sorted, func(a, b int) int { return cmp.Compare(first(a), first(b)) })
	for row := range ours {
		widest = max(widest, f.tolerance(row*n, row*n))
	}
	order := indices(f.In.Batch * f.Seq())
	if len(f.Beyond) < ours || slices.Max(f.Rows) >= len(order) {
		return nil
	}
	for row, wrong := range f.Beyond {
		if !wrong {
			continue
		}
		want, found := float64(f.Want[row*n]), -1
		compare := func(row int, v float64) int { return cmp.Compare(first(row), v) }
		at, _ := slices.BinarySearchFunc(sorted, want-widest, compare)
		for ; at < ours && first(sorted[at]) <= want+widest && found < 0; at++ {
			if other := sorted[at]; !slices.ContainsFunc(indices(n), func(c int) bool {
				g, y := row*n+c, other*n+c
				return math.Abs(float64(f.Want[g])-float64(f.Unrounded[y])) > f.tolerance(g, y)
			}) {
				found = other
			}
		}
		if found < 0 {
			return nil
		}
		order[f.Rows[row]] = f.Rows[found]
	}
	return order
}

// describeRows describes an order of rows: token i has row order[i].
func (f *Failure) describeRows(order []int) string {
	seq := f.Seq()
	var moved, sequences []string
	by := map[int]bool{}
	for i, row := range order {
		if i != row {
			by[row-i] = true
			moved = append(moved, fmt.Sprintf("token %d that of token %d", i, row))
		}
	}
	if len(by) == 1 && (by[1] || by[-1]) {
		if by[1] {
			return "each that of the token behind it"
		}
		return "each that of the token before it"
	}
	for first := 0; first < len(order); first += seq {
		from := order[first]
		for i := range seq {
			if from%seq != 0 || order[first+i] != from+i {
				return text.Some(moved, 4, ", ")
			}
		}
		if from != first {
			sequences = append(sequences, fmt.Sprintf("sequence %d those of sequence %d", first/seq, from/seq))
		}
	}
	return text.Some(sequences, 4, ", ")
}

// positionMistakes are RoPE's tables at other positions. The angles of a position are those of position 1, times it.
func (f *Failure) positionMistakes() []mistake {
	rows := f.Got.Rows()
	if rows < 3 || strings.Contains(f.Name, ".compress.") {
		return nil
	}
	var list []mistake
	for _, rule := range []struct {
		words string
		of    func(i, from int) int
	}{
		{"begin again at 0 at token %d", func(i, from int) int { return i % max(1, from) }},
		{"begin at 0 at token %[1]d, too, and go on", func(i, from int) int {
			if i < from {
				return i
			}
			return i - from
		}},
		{"begin at 1%.0[1]d", func(i, _ int) int { return i + 1 }},
		{"are twice the tokens' numbers%.0[1]d", func(i, _ int) int { return 2 * i }},
		{"are those of the sequence's end, from the right%.0[1]d", func(i, _ int) int { return rows - 1 - i }},
	} {
		from := max(0, slices.Index(f.Beyond, true))
		undo := func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.tables = func(r *model.Rotary) (cos, sin *bounds.Value) {
					return a.Tables(atPositions(r, func(i int) int { return rule.of(i, from) }))
				}
			})
			return "the reference's positions " + fmt.Sprintf(rule.words, from)
		}
		list = append(list, mistake{id: "positions", kinds: []string{f.kind()}, unless: "positions", undo: undo})
	}
	return list
}

// atPositions are tables whose row i is of another position.
func atPositions(r *model.Rotary, of func(i int) int) *model.Rotary {
	other := *r
	other.Angles, other.Others = slices.Clone(r.Angles), slices.Clone(r.Others)
	for i := range len(r.Angles) / r.Half {
		for c := range r.Half {
			other.Angles[i*r.Half+c] = float32(of(i)) * r.Angles[r.Half+c]
			other.Others[i*r.Half+c] = float32(of(i)) * r.Others[r.Half+c]
		}
	}
	return &other
}

// slotMistakes are experts whose numbers in topk_idx are others than those of the router's rows, as an engine has that
// moves experts between ranks.
func slotMistakes(f *Failure) []mistake {
	if f.Kind != pack.TopKIdx || f.Layer < 0 {
		return nil
	}
	number := f.numbersOfExperts()
	if number == nil {
		return nil
	}
	return []mistake{{id: "expert-slots", kinds: []string{pack.TopKIdx}, undo: func(x *Trial) string {
		moe, number, order := x.layer.MoE, slices.Clone(number), make([]int, len(number)) // ours of each number
		var moved []string
		for e, n := range number {
			if n >= 0 && n != e {
				moved = append(moved, fmt.Sprintf("expert %d is %d", e, n))
			}
		}
		for e, n := range number {
			for free := 0; n < 0; free++ {
				if !slices.Contains(number, free) {
					n, number[e] = free, free
				}
			}
			order[n] = e
		}
		if moved == nil || moe.Gate.EScoreCorrectionBias.Name == "" {
			return ""
		}
		experts := slices.Clone(moe.Experts)
		for e, n := range number {
			moe.Experts[n] = experts[e]
		}
		x.change(func(a bounds.Arithmetic, o *operations) {
			var scores *bounds.Value
			numbered := func(x *bounds.Value) *bounds.Value { return a.Move(model.OrderColumns(x.Shape, order), x) }
			o.addBias = func(of *bounds.Value, bias *model.Weight) *bounds.Value {
				scores = of
				y := a.AddBias(of, bias)
				if x.Config.LimitsGroups() {
					return y
				}
				return numbered(y)
			}
			o.maskGroups = func(scores *bounds.Value, groups int, chosen []int, masked float32) *bounds.Value {
				return numbered(a.MaskGroups(scores, groups, chosen, masked))
			}
			o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
				if scores != nil && operands[0] == scores {
					operands = []*bounds.Value{numbered(scores)}
				}
				return a.Move(m, operands...)
			}
		})
		return "the reference's topk_idx has other numbers than the router's rows, such as physical slots of a load " +
			"balancer: " + text.Some(moved, 4, ", ")
	}}}
}

// numbersOfExperts returns the number in the golden's choices of each expert that the golden's logits choose, -1 of
// others; nil if no order explains them. Of a token's experts the one with the largest logit has the largest weight.
func (f *Failure) numbersOfExperts() []int {
	gate, k, n := &f.Model.Layer(f.Layer).MoE.Gate, f.Model.Config.MoE.NumExpertsPerTok, f.Model.Config.Choices()
	logits, err := f.Pack.Float32s(pack.StageOf(f.Layer, pack.GateLogits))
	idx, weights := f.routing()
	if err != nil || gate.TID2EID != nil || len(idx) == 0 || len(logits)/n*k != len(idx) {
		return nil
	}
	ours := model.Choose(f.Model.Config, gate,
		&model.Activation{Shape: []int{len(logits) / n, n}, Values: logits, DType: tensor.F32}).Idx
	number, taken := slices.Repeat([]int{-1}, n), make([]bool, n)
	for t := range len(logits) / n {
		order, experts := indices(k), ours[t*k:][:k]
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(weights[t*k+b], weights[t*k+a]) })
		slices.SortFunc(experts, func(a, b int) int { return cmp.Compare(logits[t*n+b], logits[t*n+a]) })
		for i, e := range experts {
			g := idx[t*k+order[i]]
			if g < 0 || g >= n || number[e] != g && (number[e] >= 0 || taken[g]) {
				return nil
			}
			number[e], taken[g] = g, true
		}
	}
	return number
}
