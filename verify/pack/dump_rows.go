package pack

import (
	"fmt"
	"slices"

	"dsmoe/text"
)

// dumpedRequest is a sequence that an engine computed: its tokens, and the rows that did.
type dumpedRequest struct {
	tokens []int
	rows   []dumpedRow
	steps  []Step
	broken bool // rows before the first one were not dumped
}

// requests returns the sequences of the dump's steps, in the order in which they began. Of a request the rows of a step are
// those of the positions from the first one to seq_lens. Without rids the rows of a step go to the requests whose lengths their
// positions are, in the order of the batch; the error says where that tells not which.
func (d *dump) requests() (all []*dumpedRequest, err error) {
	byID, live := map[string]*dumpedRequest{}, []*dumpedRequest(nil)
	for i, s := range d.steps {
		ids, positions, lengths := s.inputs[inputIDs], s.inputs["positions"], s.inputs["seq_lens"]
		fail := func(format string, args ...any) ([]*dumpedRequest, error) {
			return nil, fmt.Errorf("step %d: %s", s.number, fmt.Sprintf(format, args...))
		}
		if len(positions) != len(ids) || len(lengths) == 0 || s.rids != nil && len(s.rids) != len(lengths) {
			return fail("%d input_ids, %d positions, %d seq_lens, %d rids", len(ids), len(positions), len(lengths), len(s.rids))
		}
		at, starts, before := 0, make([]int, len(lengths)), live
		live = nil
		for n, length := range lengths {
			starts[n] = length - 1
			if len(ids) > len(lengths) && at < len(ids) { // not one row for each request
				starts[n] = positions[at]
			}
			rows := length - starts[n]
			if starts[n] < 0 || rows < 1 || at+rows > len(ids) {
				return fail("positions and seq_lens do not go together: request %d ends at %d, its rows begin at %d", n, length, starts[n])
			}
			at += rows
		}
		if at != len(ids) {
			return fail("seq_lens tell the requests of %d rows, there are %d", at, len(ids))
		}
		of := make([]*dumpedRequest, len(lengths))
		switch {
		case s.rids != nil:
			for n, id := range s.rids {
				if starts[n] == 0 || byID[id] == nil {
					byID[id] = nil
				} else {
					of[n] = byID[id]
				}
			}
		default:
			if of, err = matched(before, starts); err != nil {
				return fail("%v", err)
			}
		}
		at = 0
		for n, r := range of {
			rows, phase := lengths[n]-starts[n], "prefill"
			if r == nil {
				r = &dumpedRequest{broken: starts[n] > 0}
				if all = append(all, r); s.rids != nil {
					byID[s.rids[n]] = r
				}
			}
			if live = append(live, r); len(r.tokens) != starts[n] {
				r.broken = true
			}
			if starts[n] > 0 && rows == 1 {
				phase = decodePhase
			} else if starts[n] > 0 {
				phase = "chunk"
			}
			r.steps = append(r.steps, Step{From: starts[n], To: lengths[n], Phase: phase, Step: i, Rows: len(ids), Requests: len(lengths)})
			for row := range rows {
				r.tokens, r.rows = append(r.tokens, ids[at+row]), append(r.rows, dumpedRow{i, at + row})
			}
			at += rows
		}
		if len(lengths) < len(ids) { // of prompts: requests that decode wait, and come first in the next step
			live = slices.Concat(slices.DeleteFunc(before, func(r *dumpedRequest) bool { return slices.Contains(of, r) }), live)
		}
	}
	whole := slices.DeleteFunc(slices.Clone(all), func(r *dumpedRequest) bool { return r.broken })
	if n := len(all) - len(whole); n > 0 {
		d.leave(text.Plural(n, "request"), n, "rows before the first dumped one were computed elsewhere, as in a prefix cache")
	}
	if len(whole) == 0 {
		return nil, fmt.Errorf("no request was dumped from its first token on: dump from the start, without a prefix cache")
	}
	return whole, nil
}

// matched returns which of the requests that ran before have these lengths, in the order of both; nil for a request that begins.
// The error says that several could.
func matched(before []*dumpedRequest, starts []int) ([]*dumpedRequest, error) {
	of := make([]*dumpedRequest, len(starts))
	for n, start := range starts {
		var same []*dumpedRequest
		for _, r := range before {
			if len(r.tokens) == start && start > 0 {
				same = append(same, r)
			}
		}
		alike := slices.DeleteFunc(slices.Clone(starts), func(other int) bool { return other != start })
		if len(same) > len(alike) {
			return nil, fmt.Errorf("%d requests have %d tokens, and %d go on: which is not known without rids: dump with "+
				"DUMPER_ENABLE=1 DUMPER_NON_INTRUSIVE_MODE=all", len(same), start, len(alike))
		}
		if i := len(slices.DeleteFunc(slices.Clone(starts[:n]), func(other int) bool { return other != start })); i < len(same) {
			of[n] = same[i]
		}
	}
	return of, nil
}

// layOut makes the trace's batch of the requests: a sequence of each. Padding has the row of the last token.
func (p *Pack) layOut(requests []*dumpedRequest, d *dump) {
	seq, padded := 0, false
	for _, r := range requests {
		padded = padded || seq > 0 && len(r.tokens) != seq
		seq = max(seq, len(r.tokens))
	}
	var ids, mask []int
	p.Manifest.Tensors, p.Manifest.Steps = map[string]Entry{}, []Step{}
	for n, r := range requests {
		for i := range seq {
			at := min(i, len(r.tokens)-1)
			ids, d.places = append(ids, r.tokens[at]), append(d.places, r.rows[at])
			mask = append(mask, 1)
			if at < i {
				mask[len(mask)-1] = 0
			}
		}
		for _, s := range r.steps {
			s.Sequence = n
			p.Manifest.Steps = append(p.Manifest.Steps, s)
		}
	}
	p.addInts(inputIDs, []int{len(requests), seq}, ids)
	if padded {
		p.addInts(attentionMask, []int{len(requests), seq}, mask)
	}
}
