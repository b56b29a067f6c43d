package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Shares of a gate's tokens that may choose another expert because two scores tie
// within the measured noise. Choices whose scores are equal to the bit are not
// counted: the reference's topk leaves them open.
const (
	nearShare        = 0.001 // float32
	nearShareReduced = 0.01  // BF16, F16: scores have few bits
)

// TopK compares the experts chosen with the golden's, as sets per token, and puts
// the golden's in their place, so that a difference is found once and the weights
// pair up by expert.
func (t *tracer) TopK(name string, ours *choice) error {
	t.chosen = ours.Idx // what the pass goes on with
	if !t.golden(name) {
		return nil
	}
	layer, _ := split(name)
	k := len(ours.Idx) / ours.Scores.Rows()
	e := t.pack.Manifest.Tensors[name]
	c := Check{Tensor: name, Verdict: Fail, DType: e.DType.String(), Shape: e.Shape, layer: layer}
	if c.Reason = unfit(e, []int{ours.Scores.Rows(), k}, tensor.I64); c.Reason == "" {
		want, err := t.pack.Ints(name)
		if err != nil {
			return err
		}
		if c.Reason = notRouting(want, k, ours); c.Reason == "" {
			t.compareTopK(&c, ours, want, k)
			copy(ours.Idx, want)
		}
	}
	t.add(c)
	return nil
}

// reach records the experts whose output shows for some token, given the weights of
// those last chosen.
func (t *tracer) reach(layer int, weights *model.Activation) {
	if t.reached[layer] == nil {
		t.reached[layer] = map[int]bool{}
	}
	for slot, e := range t.chosen {
		if shows(weights, slot) {
			t.reached[layer][e] = true
		}
	}
}

// notRouting says why ids are no choice of k different experts per token, or why there
// is nothing to compare them by.
func notRouting(ids []int, k int, ours *choice) string {
	experts := ours.Scores.Width()
	if i := slices.IndexFunc(ours.Scores.Values, func(v float32) bool { return v != v }); i >= 0 {
		return fmt.Sprintf("the score of expert %d for token %d is not a number", i%experts, i/experts)
	}
	for i, e := range ids {
		if e < 0 || e >= experts {
			return fmt.Sprintf("golden expert %d of token %d is not one of %d", e, i/k, experts)
		}
		if slices.Contains(ids[i/k*k:i], e) {
			return fmt.Sprintf("golden expert %d of token %d appears twice", e, i/k)
		}
	}
	return ""
}

// compareTopK counts the golden's choices that are not ours by what excuses them.
func (t *tracer) compareTopK(c *Check, ours *choice, want []int, k int) {
	var near, wrong int
	for row := range ours.Scores.Rows() {
		theirs := want[row*k : (row+1)*k]
		found := t.compareRow(ours, theirs, row)
		if found.nearTies > 0 {
			near++
		}
		if len(found.wrong) > 0 && wrong == 0 {
			c.Index = []int{row, slices.Index(theirs, found.wrong[0])}
			c.Want, c.Got = fmt.Sprintf("expert %d", found.wrong[0]), fmt.Sprintf("experts %v", found.ours)
		}
		wrong += len(found.wrong)
		t.routing.ExactTies += found.exactTies
		t.routing.NearTies += found.nearTies
	}
	t.routing.Choices += len(ours.Idx)
	t.routing.Rows += ours.Scores.Rows()
	t.routing.NearRows += near
	t.routing.Mismatches += wrong
	t.judgeTopK(c, ours.Scores.DType, near, wrong, ours.Scores.Rows())
}

// rowChoice is how the golden's choice of a token's experts differs from ours.
type rowChoice struct {
	ours                []int // with the golden's groups, if those tie with ours
	exactTies, nearTies int
	wrong               []int // golden experts that no tie excuses
}

func (r *rowChoice) count(kind tieKind, expert int) {
	switch kind {
	case exactTie:
		r.exactTies++
	case nearTie:
		r.nearTies++
	case noTie:
		r.wrong = append(r.wrong, expert)
	}
}

// compareRow compares one token's experts. Those that only we chose and those that only
// the golden chose are paired by score, best with best: every pair has to tie.
func (t *tracer) compareRow(ours *choice, theirs []int, row int) rowChoice {
	k := len(theirs)
	r := rowChoice{ours: ours.Idx[row*k : (row+1)*k]}
	scores := ours.Scores.Row(row)
	if groups, kind := t.otherGroups(ours, theirs, row); kind != noTie {
		g := ours.Groups
		scores = model.MaskGroups(g.Scores.Row(row), g.Worth.Width(), groups, g.Masked)
		r.ours = model.TopK(scores, k)
		r.count(kind, -1)
	}
	dropped := only(r.ours, theirs, scores)
	for i, e := range only(theirs, r.ours, scores) {
		r.count(t.tie(scores[dropped[i]], scores[e], ours.Scores.DType, row), e)
	}
	return r
}

// only returns the experts of a that are not in b, best score first.
func only(a, b []int, scores []float32) []int {
	var list []int
	for _, e := range a {
		if !slices.Contains(b, e) {
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(x, y int) int { return cmp.Compare(scores[y], scores[x]) })
	return list
}

func (t *tracer) judgeTopK(c *Check, d tensor.DType, near, wrong, rows int) {
	share := nearShare
	if d != tensor.F32 {
		share = nearShareReduced
	}
	allowed := max(1, int(share*float64(rows)))
	t.routing.NearRowsAllowed += allowed
	skip := ""
	if t.o.Mode == Chained && t.pack.DType != tensor.F32 {
		skip = t.unjudged(c.Tensor)
	}
	switch {
	case skip != "":
		c.Verdict, c.Reason = Skipped, skip
	case wrong > 0:
		c.Reason = fmt.Sprintf("%d choices of another expert, where no tie excuses it", wrong)
	case near > allowed:
		c.Reason = fmt.Sprintf("%d tokens choose another expert within the noise, %d may", near, allowed)
	default:
		c.Verdict = Pass
	}
}

type tieKind int

const (
	noTie tieKind = iota
	nearTie
	exactTie
)

// otherGroups returns the groups that the golden's experts come from, filled up with the
// best of ours, if they are others than ours and tie with those they stand for: paired
// by worth, best with best. noTie means that there is nothing to excuse.
func (t *tracer) otherGroups(ours *choice, theirs []int, row int) ([]int, tieKind) {
	g := ours.Groups
	if g == nil {
		return nil, noTie
	}
	count := len(g.Chosen) / g.Worth.Rows()
	chosen, worth := g.Chosen[row*count:(row+1)*count], g.Worth.Row(row)
	size := ours.Scores.Width() / g.Worth.Width()
	var golden []int
	for _, e := range theirs {
		if !slices.Contains(golden, e/size) {
			golden = append(golden, e/size)
		}
	}
	added := only(golden, chosen, worth)
	if len(added) == 0 || len(golden) > count {
		return nil, noTie
	}
	dropped := only(chosen, golden, worth)
	kept := dropped[:len(dropped)-len(added)]
	kind := exactTie
	for i, group := range added {
		out := dropped[len(kept)+i]
		switch t.tie(worth[out], worth[group], ours.Scores.DType, row) {
		case noTie:
			return nil, noTie
		case nearTie:
			kind = nearTie
		}
	}
	return append(golden, kept...), kind
}

// tie says whether the golden's score, of an expert or a group, ties with ours, in whose
// place it was chosen: exactly, or within twice the error that the scores of this row
// may have. A score of dtype d moves by at most its own size times twice the error of
// the logits (d softmax), plus its rounding.
func (t *tracer) tie(ours, golden float32, d tensor.DType, row int) tieKind {
	gap := float64(ours) - float64(golden)
	noise := map[tensor.DType]float64{tensor.F32: 0x1p-22, tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[d]
	if t.o.Mode == Chained && row < len(t.logitsErr) {
		noise += float64(2 * t.logitsErr[row])
	}
	switch {
	case gap == 0:
		return exactTie
	case gap > 0 && gap <= float64(2*noise*math.Abs(float64(ours))):
		return nearTie
	}
	return noTie
}
