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
// pair up by expert. It implements model.Trace.
func (t *tracer) TopK(name string, choice *model.Choice) {
	layer, _ := split(name)
	scores, idx := choice.Scores, choice.Idx // idx is what the pass goes on with
	t.chosen = idx
	if !t.golden(name) {
		return
	}
	k := len(idx) / scores.Rows()
	e := t.pack.Manifest.Tensors[name]
	c := Check{Tensor: name, DType: e.DType.String(), Shape: e.Shape, layer: layer}
	c.Verdict, c.Reason = Fail, unfit(e, []int{scores.Rows(), k}, tensor.I64)
	if c.Reason == "" {
		want, err := t.pack.Ints(name)
		if err != nil {
			t.err = err
			return
		}
		if c.Reason = notRouting(want, k, choice); c.Reason == "" {
			t.compareTopK(&c, choice, want, k)
			copy(idx, want)
		}
	}
	t.add(c)
}

// reach records the experts whose output counts for some token, given the weights of
// those last chosen.
func (t *tracer) reach(layer int, weights *model.Activation) {
	if t.reached[layer] == nil {
		t.reached[layer] = map[int]bool{}
	}
	for i, e := range t.chosen {
		if model.Matters(weights, i) {
			t.reached[layer][e] = true
		}
	}
}

// notRouting says why ids are no choice of k different experts per token, or why there
// is nothing to compare them by.
func notRouting(ids []int, k int, choice *model.Choice) string {
	experts := choice.Scores.Width()
	if i := slices.IndexFunc(choice.Scores.Values, func(v float32) bool { return v != v }); i >= 0 {
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

// compareTopK counts the golden's choices that are not ours by what excuses them. In
// each row the experts that only we chose and those that only the golden chose are
// paired by score, best with best: every pair has to tie.
func (t *tracer) compareTopK(c *Check, choice *model.Choice, want []int, k int) {
	var near, wrong int
	for row := range choice.Scores.Rows() {
		ours, theirs := choice.Idx[row*k:(row+1)*k], want[row*k:(row+1)*k]
		scores := choice.Scores.Row(row)
		rowNear := false
		if groups, kind := t.otherGroups(choice, theirs, row); kind != noTie {
			ours, scores = choice.Groups.Rerank(row, k, groups)
			if kind == exactTie {
				t.routing.ExactTies++
			} else {
				t.routing.NearTies++
				rowNear = true
			}
		}
		dropped, added := only(ours, theirs, scores), only(theirs, ours, scores)
		for i, e := range added {
			switch t.tie(choice, scores[dropped[i]], scores[e], unsure(choice, dropped[i], e), row) {
			case exactTie:
				t.routing.ExactTies++
			case nearTie:
				t.routing.NearTies++
				rowNear = true
			case noTie:
				if wrong++; wrong == 1 {
					c.Index = []int{row, slices.Index(theirs, e)}
					c.Want, c.Got = fmt.Sprintf("expert %d", e), fmt.Sprintf("experts %v", ours)
				}
			}
		}
		if rowNear {
			near++
		}
	}
	t.routing.Choices += len(choice.Idx)
	t.routing.Rows += choice.Scores.Rows()
	t.routing.NearRows += near
	t.routing.Mismatches += wrong
	t.judgeTopK(c, choice.Scores.DType, near, wrong, choice.Scores.Rows())
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
		skip = t.gate(c.Tensor)
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
func (t *tracer) otherGroups(choice *model.Choice, theirs []int, row int) ([]int, tieKind) {
	g := choice.Groups
	if g == nil {
		return nil, noTie
	}
	count := len(g.Chosen) / g.Worth.Rows()
	ours, worth := g.Chosen[row*count:(row+1)*count], g.Worth.Row(row)
	size := choice.Scores.Width() / g.Worth.Width()
	var golden []int
	for _, e := range theirs {
		if !slices.Contains(golden, e/size) {
			golden = append(golden, e/size)
		}
	}
	added := only(golden, ours, worth)
	if len(added) == 0 || len(golden) > count {
		return nil, noTie
	}
	dropped := only(ours, golden, worth)
	kept := dropped[:len(dropped)-len(added)]
	kind := exactTie
	for i, group := range added {
		out := dropped[len(kept)+i]
		switch t.tie(choice, worth[out], worth[group], unsureOfGroups(choice, size, out, group), row) {
		case noTie:
			return nil, noTie
		case nearTie:
			kind = nearTie
		}
	}
	return append(golden, kept...), kind
}

// unsure is how far the scores of two experts may be off together.
func unsure(choice *model.Choice, a, b int) float64 {
	if choice.Unsure == nil {
		return 0
	}
	return choice.Unsure[a] + choice.Unsure[b]
}

// unsureOfGroups is the same for two groups, whose worth is a sum of two scores.
func unsureOfGroups(choice *model.Choice, size, a, b int) float64 {
	if choice.Unsure == nil {
		return 0
	}
	return 2 * (slices.Max(choice.Unsure[a*size:(a+1)*size]) + slices.Max(choice.Unsure[b*size:(b+1)*size]))
}

// tie says whether the golden's score, of an expert or a group, ties with ours, in whose
// place it was chosen: exactly, or within twice the error that the scores of this row
// may have. A score moves by at most its own size times twice the error of the
// logits (d softmax), plus its rounding, plus what a bias of few bits leaves open.
func (t *tracer) tie(choice *model.Choice, ours, golden float32, unsure float64, row int) tieKind {
	gap := float64(ours) - float64(golden)
	noise := map[tensor.DType]float64{tensor.F32: 0x1p-22, tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[choice.Scores.DType]
	if t.o.Mode == Chained && row < len(t.logitsErr) {
		noise += float64(2 * t.logitsErr[row])
	}
	switch {
	case gap == 0:
		return exactTie
	case gap > 0 && gap <= float64(2*noise*math.Abs(float64(ours)))+unsure:
		return nearTie
	}
	return noTie
}
