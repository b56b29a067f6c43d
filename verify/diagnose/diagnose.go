package diagnose

import (
	"context"
	"maps"
	"slices"

	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Diagnose returns all causes that explain the failure, and hints: mistakes that explain a part of it, and weights that
// look wrong by themselves.
func (f *Failure) Diagnose(ctx context.Context) (causes, hints []report.Cause, err error) {
	if causes, hints, err = f.explanations(ctx); err != nil {
		return nil, nil, err
	}
	if len(causes) > 0 {
		hints = nil // what explains a part is no news beside what explains all
	}
	odd, err := f.oddWeights()
	if hints = append(hints, odd...); f.How != nil {
		causes, hints = ofEngine(causes), ofEngine(hints)
	}
	return causes, hints, err
}

// readOff are the mistakes that are read off the numbers of a failed stage, those of which rows of zeros may be one first.
var readOff = [][]func(*Failure) []mistake{
	{slotMistakes, tokenMistakes, latentMistakes, biasOffMistakes, orderMistakes, summedMistakes, sharedMistakes},
	{factorMistakes, otherMistakes, elementMistakes, exchangeMistakes, rankMistakes, codedMistakes, fusedMistakes, mlpMistakes,
		roundedMistakes}}

// Explain returns the first known mistake of these ids that explains the failed stage, and the failed stages of the layer
// that pass with it undone; nil if none does. A stage whose bounds say nothing with the mistake undone does not pass.
func (f *Failure) Explain(ctx context.Context, ids []string) (*report.Cause, []string, error) {
	f.Strict, f.wrong = true, f.wrongToken()
	recorded, _ := f.recordedMistakes()
	solved, err := f.numberMistakes(ctx, slices.Concat(f.shownNumbers(), f.scoreScales()))
	if err != nil {
		return nil, nil, err
	}
	list := slices.Concat(recorded, mistakes(f), solved)
	for _, read := range slices.Concat(readOff...) {
		list = append(list, read(f)...)
	}
	for _, m := range list {
		if !slices.Contains(ids, m.id) || !slices.Contains(m.kinds, f.kind()) {
			continue
		}
		cause, explained, err := f.try(ctx, m, false)
		if cause != nil && f.How != nil {
			cause = &ofEngine([]report.Cause{*cause})[0]
		}
		if cause != nil || err != nil {
			return cause, explained, err
		}
	}
	return nil, nil, nil
}

// explanations returns the causes: weights that are not finite, overflow, rows of zeros, then mistakes that explain every
// failed stage of the layer. Mistakes that explain only some of these stages are hints, of one id those that explain most.
func (f *Failure) explanations(ctx context.Context) (causes, hints []report.Cause, err error) {
	causes, err = f.notFiniteWeights()
	if err != nil || len(causes) > 0 {
		return causes, nil, err
	}
	causes = append(causes, f.overflows()...)
	f.wrong = f.wrongToken()
	var known []report.Cause // from the pack's config
	try := func(list []mistake, readOff bool) error {
		for _, m := range list {
			if !slices.Contains(m.kinds, f.kind()) || m.unless != "" && hasCause(causes, m.unless) ||
				m.guess && len(causes) > 0 || hasCause(known, m.id) {
				continue
			}
			c, _, err := f.try(ctx, m, readOff)
			switch {
			case err != nil:
				return err
			case c == nil:
			case c.Explains < c.Failing && !slices.Contains(hints, *c):
				if m.guess && slices.ContainsFunc(hints, func(h report.Cause) bool { return h.ID == c.ID && h.Explains >= c.Explains }) {
					continue // another value explains as much
				}
				hints = slices.DeleteFunc(hints, func(h report.Cause) bool { return h.ID == c.ID && h.Explains < c.Explains })
				hints = append(hints, *c)
			case c.Explains == c.Failing && !slices.Contains(causes, *c):
				causes = append(causes, *c)
			}
		}
		return nil
	}
	recorded, together := f.recordedMistakes()
	err = try(recorded, false)
	known = slices.Clone(causes)
	if err == nil && len(known) == 0 { // first, as they are few, and read off the rows that are wrong
		err = try(maskMistakes(f), false)
	}
	if err == nil && len(causes) == 0 {
		var solved []mistake
		if solved, err = f.numberMistakes(ctx, f.shownNumbers()); err == nil {
			err = try(solved, false)
		}
	}
	if err == nil {
		err = try(mistakes(f), false)
	}
	if err == nil && len(causes) == 0 {
		err = try(together, false)
	}
	if err == nil && len(causes) == 0 {
		var scale []mistake
		if scale, err = f.numberMistakes(ctx, f.scoreScales()); err == nil {
			err = try(scale, false)
		}
	}
	for _, list := range readOff {
		for _, read := range list {
			if err == nil && len(causes) == 0 { // what is known by name says more
				err = try(read(f), true)
			}
		}
		if len(causes) == 0 { // before factors, of which 0 would be one
			causes = append(causes, f.noResult()...)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return causes, hints, nil
}

// try undoes the mistake and runs the layer. It returns the mistake with the number of failed stages that pass then;
// nil if the failed stage still fails, or if another stage fails that passed. explained are those that pass. A mistake that
// was not read off the failed stage is first tried on that stage alone; one that is Causal on a few of its tokens.
func (f *Failure) try(ctx context.Context, m mistake, readOff bool) (cause *report.Cause, explained []string, err error) {
	x := f.NewTrial()
	text := m.undo(x)
	if text == "" || m.experts && f.Kind == pack.ExpertsOutput && !f.nearSum(x) {
		return nil, nil, ctx.Err()
	}
	if !readOff || x.Causal { // the failed stage first, in one row if that tells
		known, passes, err := f.Sample(ctx, x)
		passes = passes || !known && readOff
		if !known && !readOff && err == nil {
			var stages map[string]bool
			stages, err = f.Rerun(ctx, x, []string{f.Name})
			passes = stages[f.Name]
		}
		if err != nil || !passes {
			return nil, nil, err
		}
	}
	failed := map[string]bool{}
	for _, c := range f.Checks {
		if c.Layer() == f.Layer && f.Pack.Has(c.Tensor) && c.Verdict != report.Skipped && c.Accepted == nil {
			failed[c.Tensor] = c.Verdict == report.Fail
		}
	}
	passes, err := f.Rerun(ctx, x, slices.Sorted(maps.Keys(failed)))
	if err != nil || !passes[f.Name] {
		return nil, nil, err
	}
	cause = &report.Cause{ID: m.id, Text: text}
	for name, pass := range passes {
		switch {
		case failed[name]:
			cause.Failing++
			if pass {
				cause.Explains++
				explained = append(explained, name)
			}
		case !pass:
			return nil, nil, nil
		}
	}
	if m.more != nil {
		words, err := m.more(ctx)
		cause.Text += words
		return cause, explained, err
	}
	return cause, explained, nil
}

// mistakes are tried in this order, in which Report.Causes lists them: switches and numbers of
// the config first, then what a conversion does to weights, from whole layers to rows.
func mistakes(f *Failure) (list []mistake) {
	for _, of := range []func(f *Failure) []mistake{gateMistakes, attentionMistakes, productMistakes, sumMistakes,
		biasMistakes, engineMistakes, headMistakes, wiringMistakes, weightMistakes, predictionMistakes, expertMistakes, projectionMistakes, scaleMistakes,
		indexerMistakes, streamMistakes, entryMistakes, tableMistakes, publishedMistakes, groupedMistakes,
		blockMistakes} {
		list = append(list, of(f)...)
	}
	return list
}

// hasCause reports whether the mistake id is among the causes.
func hasCause(causes []report.Cause, id string) bool {
	return slices.ContainsFunc(causes, func(c report.Cause) bool { return c.ID == id })
}
