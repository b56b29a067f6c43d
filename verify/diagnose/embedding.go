package diagnose

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// embedding is the failed output of the embedding: rows of a matrix, looked up by token ids and rounded once. What the
// reference looked up instead is searched for, and must give all of the golden's numbers.
type embedding struct {
	w     *model.Weight
	plain *model.Plain
	ids   []int // distinct token ids
	ours  []float32
	want  []float32 // the golden's row for each of ids
	width int
}

// Embedding returns causes and hints for a failed embedding: want is its golden [tokens, hidden_size].
func Embedding(m *model.DeepseekForCausalLM, ids []int, want []float32, d tensor.DType) (causes, hints []report.Cause) {
	e := &embedding{w: &m.Model.EmbedTokens, plain: model.NewPlain(model.Options{DType: d}), width: m.Config.HiddenSize}
	defer e.plain.Close(nil)
	for i, id := range ids {
		row := want[i*e.width : (i+1)*e.width]
		switch at := slices.Index(e.ids, id); {
		case at < 0:
			e.ids, e.want = append(e.ids, id), append(e.want, row...)
		case !slices.Equal(e.row(at), row):
			return nil, nil // one token has several rows
		}
	}
	e.ours = slices.Clone(e.plain.Embed(e.w, e.ids).Values)
	if len(e.differing()) == 0 { // a limit of the user's may fail without
		return nil, nil
	}
	if words := e.factor(m, d); words != "" {
		return []report.Cause{{ID: "embedding-scaled", Text: words}}, nil
	}
	head := &m.LMHead.Weight
	if head.Name != e.w.Name && slices.Equal(head.Shape, e.w.Shape) && slices.Equal(e.plain.Embed(head, e.ids).Values, e.want) {
		return []report.Cause{{ID: "other-weight",
			Text: fmt.Sprintf("%s is not the reference's, which is stored as %s", e.w.Name, head.Name)}}, nil
	}
	if words := e.otherRows(); words != "" {
		return []report.Cause{{ID: "embedding-rows", Text: words}}, nil
	}
	if words := e.otherColumns(); words != "" {
		return []report.Cause{{ID: "columns-permuted", Text: words}}, nil
	}
	if words := e.lowRank(d); words != "" {
		return []report.Cause{{ID: "low-rank", Text: words}}, nil
	}
	if differ := e.differing(); len(differ) <= bounds.Few && len(differ) < len(e.ids) {
		return nil, []report.Cause{{ID: "embedding-tokens", Text: fmt.Sprintf(
			"of the pack's %d token ids the rows of %s differ, those of the others are the reference's", len(e.ids), text.Ranges(differ))}}
	}
	return nil, nil
}

// row is the golden's row for token i of ids.
func (e *embedding) row(i int) []float32 { return e.want[i*e.width : (i+1)*e.width] }

// differing are the token ids whose rows are not the golden's.
func (e *embedding) differing() (ids []int) {
	for i, id := range e.ids {
		if !slices.Equal(e.row(i), e.ours[i*e.width:(i+1)*e.width]) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// factor describes the number that our rows times it are the golden, rounded once; "" if no number fits.
func (e *embedding) factor(m *model.DeepseekForCausalLM, d tensor.DType) string {
	all, p, stored := new(fit), bounds.PrecisionOf(d), bounds.PrecisionOf(e.w.DType)
	for i, y := range e.ours {
		all.add(float64(y), float64(e.want[i]))
	}
	// a rounding has a standard deviation of a unit / √12
	by, unsure := all.factor(), bounds.Lambda*math.Hypot(p.Ulp(1), stored.Ulp(1))/math.Sqrt(12*max(1, all.n))
	if math.Abs(by-1) < max(leastFactor, unsure) || all.left(by) > mostLeft*all.left(1) {
		return ""
	}
	root, what := math.Sqrt(float64(m.Config.HiddenSize)), ""
	for _, known := range []struct {
		is    float64
		words string
	}{{root, " (√hidden_size)"}, {1 / root, " (1/√hidden_size)"}} {
		if math.Abs(by/known.is-1) < unsure {
			by, what = known.is, known.words
		}
	}
	for i, want := range e.want { // ours and the golden are off by half a unit at most
		ours := float64(e.ours[i])
		units := p.Ulp(float64(want)) + float64(math.Abs(by)*stored.Ulp(ours))
		if math.Abs(float64(want)-float64(by*ours)) > units/2+float64(unsure*math.Abs(by*ours)) {
			return ""
		}
	}
	return fmt.Sprintf("the reference's embeddings are %s%s times ours", unlike(by, 3, 1), what)
}

// otherRows describes in which rows of ours the golden's are; "" if one is nowhere.
func (e *embedding) otherRows() string {
	const head = 8 // numbers of a row that are compared first
	type key [head]float32
	start := func(row []float32) (k key) {
		copy(k[:], row)
		return k
	}
	wanted := map[key][]int{} // indices of ids, by how their golden rows begin
	for i := range e.ids {
		k := start(e.row(i))
		wanted[k] = append(wanted[k], i)
	}
	found, left := make([]int, len(e.ids)), len(e.ids) // row of ours
	for i := range found {
		found[i] = -1
	}
	for i, id := range e.ids { // a token whose row is right stays
		if slices.Equal(e.row(i), e.ours[i*e.width:(i+1)*e.width]) {
			found[i], left = id, left-1
		}
	}
	first := *e.w // the first columns of the matrix, row by row
	first.Shape = []int{1, min(head, e.width)}
	size := len(e.w.Data) / e.w.Shape[0]
	if e.w.Scales != nil || e.w.DType.Blocked() {
		return ""
	}
	for r := 0; r < e.w.Shape[0] && left > 0; r++ {
		first.Data = e.w.Data[r*size:][:size*first.Shape[1]/e.width]
		for _, i := range wanted[start(e.plain.Embed(&first, []int{0}).Values)] {
			if found[i] < 0 && slices.Equal(e.row(i), e.plain.Embed(e.w, []int{r}).Values) {
				found[i], left = r, left-1
			}
		}
	}
	if left > 0 {
		return ""
	}
	by, moved, example := found[0]-e.ids[0], 0, 0
	for i, r := range found {
		if r != e.ids[i] {
			moved, example = moved+1, i
		}
		if n := e.w.Shape[0]; (r-e.ids[i]-by)%n != 0 {
			by = 0
		}
	}
	if by != 0 {
		return fmt.Sprintf("the reference's row for token id i is row i%+d of %s, of all %d token ids of the pack", by, e.w.Name, len(e.ids))
	}
	return fmt.Sprintf("the rows of %s have other token ids than the reference's, for %d of the pack's %d: its row for %d is row %d",
		e.w.Name, moved, len(e.ids), e.ids[example], found[example])
}

// otherColumns describes the hidden channels of ours in the golden's order; "" if they are not the same ones.
func (e *embedding) otherColumns() string {
	column := func(values []float32, c int) (all []float32) {
		for i := c; i < len(values); i += e.width {
			all = append(all, values[i])
		}
		return all
	}
	order, taken := make([]int, e.width), make([]bool, e.width)
	byFirst := map[float32][]int{}
	for c := range e.width {
		byFirst[e.ours[c]] = append(byFirst[e.ours[c]], c)
	}
	for c := range e.width {
		order[c] = -1
		for _, from := range byFirst[e.want[c]] {
			if !taken[from] && slices.Equal(column(e.want, c), column(e.ours, from)) {
				order[c], taken[from] = from, true
				break
			}
		}
		if order[c] < 0 {
			return ""
		}
	}
	moved := slices.DeleteFunc(indices(e.width), func(c int) bool { return order[c] == c })
	return fmt.Sprintf("the columns of %s, the hidden channels, are in another order than the reference's: %d of %d are elsewhere; "+
		"channel %d of the reference's is column %d", e.w.Name, len(moved), e.width, moved[0], order[moved[0]])
}

// lowRank describes a difference of low rank, such as a LoRA that was merged on one side, in the rows that differ: beside
// it every number is the golden's within the roundings of both. It returns "" if the difference has many directions.
func (e *embedding) lowRank(d tensor.DType) string {
	if !e.w.DType.Casts() || !bounds.AllFinite(e.want) {
		return ""
	}
	stored, golden := bounds.PrecisionOf(e.w.DType), bounds.PrecisionOf(d)
	differ := slices.DeleteFunc(indices(len(e.ids)), func(i int) bool { return slices.Equal(e.row(i), e.ours[i*e.width:(i+1)*e.width]) })
	want := func(t, c int) float64 { return float64(e.want[differ[t]*e.width+c]) }
	ours := func(t, c int) float64 { return float64(e.ours[differ[t]*e.width+c]) }
	difference := func(t, c int) float64 { return want(t, c) - ours(t, c) }
	rows := min(len(differ), mostGrams)
	if rows < 2*ranksOfProduct {
		return ""
	}
	const both = 2 // the weight was rounded on both sides
	unit := func(t, c int) float64 {
		unit := both * stored.Ulp(ours(t, c))
		if d != e.w.DType {
			unit += golden.Ulp(want(t, c))
		}
		return unit
	}
	noise := 0.0
	for t := range rows {
		for c := range e.width {
			noise += bounds.Sq(unit(t, c)) / 12
		}
	}
	directions := spanOf(rows, e.width, difference, ours, noise)
	rank := float64(len(directions))
	unsure := bounds.Lambda * math.Sqrt(noise/float64(rows*e.width)*(rank/float64(rows)+rank/float64(e.width)))
	if directions == nil ||
		!e.explains(directions, len(differ), difference, func(t, c int) float64 { return unit(t, c)/2 + unsure }) {
		return ""
	}
	return fmt.Sprintf("%s and the reference's differ by a matrix of rank %d, such as a LoRA or a few columns, in the rows of "+
		"%d of the pack's %d token ids%s", e.w.Name, len(directions), len(differ), len(e.ids), roundingWords(e.w.DType))
}

// explains reports whether what the directions leave of a difference is within the limits.
func (e *embedding) explains(directions [][]float64, rows int, difference, limit func(t, c int) float64) bool {
	left := make([]float64, e.width)
	for t := range rows {
		for c := range left {
			left[c] = difference(t, c)
		}
		for _, d := range directions {
			along := 0.0
			for c, v := range d {
				along += float64(v * difference(t, c))
			}
			for c, v := range d {
				left[c] -= float64(along * v)
			}
		}
		for c, v := range left {
			if math.Abs(v) > limit(t, c) {
				return false
			}
		}
	}
	return true
}
