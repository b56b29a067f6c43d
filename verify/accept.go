package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/model/table"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// mostUnexplained is how many failed stages without an accepted cause are looked at: with these the run fails, whatever
// explains others.
const mostUnexplained = 8

// accept accepts failed checks: those of stages that are within their limits with a cause undone that the user accepts. It
// returns the report without them.
func accept(ctx context.Context, e *evidence, r *report.Report) (*report.Report, error) {
	ids := e.job.options.Accept
	if ids == nil {
		return r, nil
	}
	unexplained := 0
	for _, failed := range r.Checks {
		at := slices.IndexFunc(e.checks, func(c report.Check) bool { return c.Tensor == failed.Tensor })
		if at < 0 || failed.Verdict != report.Fail || e.checks[at].Accepted != nil {
			continue
		} else if unexplained == mostUnexplained {
			break
		}
		f, err := rerunFailure(ctx, e, failed.Tensor)
		if err != nil {
			return r, err
		}
		if f == nil {
			unexplained++
			continue
		}
		cause, explained, err := f.Explain(ctx, ids)
		if err != nil {
			return r, err
		}
		if cause == nil {
			unexplained++
		}
		for i := range e.checks {
			if c := &e.checks[i]; c.Verdict == report.Fail && slices.Contains(explained, c.Tensor) {
				c.Verdict, c.Accepted, c.Pattern = report.Accepted, cause, nil
				e.passWith(c)
			}
		}
	}
	accepted := e.project()
	accepted.Rounding, accepted.Hints = r.Rounding, r.Hints
	return conclude(accepted), nil
}

// passWith notes that a check passes with a cause undone. How a gate chose by rules that are not the model's tells neither
// its biases nor its numbers of groups from others. Nor does a stage tell numbers with others of which it passes.
func (e *evidence) passWith(c *report.Check) {
	for _, w := range e.behind[c.Tensor] {
		e.passed[w] = struct{}{}
	}
	maps.DeleteFunc(e.tells, func(_ tell, from string) bool { return from == c.Tensor })
	s := c.Stage()
	if s.Within != pack.TopKIdx {
		return
	}
	if bias := pack.StageOf(s.Layer, "mlp.gate."+string(table.EScoreCorrectionBias)); e.job.weights.Find(bias) != nil {
		e.unpinned[bias] = struct{}{}
	}
	for _, key := range groupKeys(e.job.model.Config) {
		for _, by := range halfAndTwice {
			delete(e.tells, tell{s.Layer, key, by})
		}
	}
}

// UnusedAcceptances refuses causes that the user accepts and that explain nothing, unless the report fails: that matters
// more.
func UnusedAcceptances(r *report.Report) error {
	if unused := r.UnusedAcceptances(); len(unused) > 0 && r.Verdict != report.Fail {
		return fmt.Errorf("accept %s: it explains nothing, all is within limits without it: leave it out", strings.Join(unused, ", "))
	}
	return nil
}
