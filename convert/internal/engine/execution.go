package engine

// One run: what the workers share.

import (
	"context"
	"errors"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"

	"dsmoe/convert/internal/output"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
)

// execution is one run of a plan.
type execution struct {
	Settings
	plan     *plan.Plan
	source   Source
	key      string              // state of the source: Source.Key
	target   *output.Target      // where the output appears
	out      output.Output       // the files
	shape    shape               // workers and tiles
	compute  *semaphore.Weighted // held by a goroutine while it computes
	flushing sync.Mutex          // held during flush
	*progress.Ledger
	carried map[string]string // hashes of the files copied from the source, by name
	remade  bool              // the target is a finished output of the plan, which StartOver makes anew
	intact  map[string]string // states of the target's files when they were hashed and found unchanged
}

func newExecution(t *output.Target, p *plan.Plan, src Source, s Settings) (*execution, error) {
	options, err := outputOptions(src, s)
	if err != nil {
		return nil, err
	}
	options.Spans = p.Share(s.Part)
	e := &execution{Settings: s, plan: p, source: src, key: options.Key, target: t,
		out: output.New(t, p, options), shape: newShape(p, s, t.InStore()),
		compute: semaphore.NewWeighted(int64(s.Compute)), Ledger: progress.NewLedger(options.Spans, s.Progress),
		carried: map[string]string{}}
	bytes := e.Bytes()
	if s.Unverified {
		e.StartPhase("writing", bytes)
	} else {
		e.StartPhase("converting", 2*bytes)
	}
	return e, nil
}

// outputOptions are what an output asks for of the settings and the source.
func outputOptions(src Source, s Settings) (o output.Options, err error) {
	o = output.Options{Part: s.Part, StartOver: s.StartOver, Overwrite: s.Overwrite, Disk: s.Disk}
	if o.Key, err = src.Key(); err == nil && (s.Part.N > 0 || s.Finish) {
		o.States, err = src.States()
		if strings.HasPrefix(o.Key, source.Unknown) {
			err = errors.New("SRC's server sends neither ETag nor Last-Modified: whether two parts read the same bytes is not " +
				"known; convert in one run, or download SRC")
		}
	}
	return o, err
}

// hashesWriting reports whether the hash of t is computed while t is written: always without
// verification, and for a tensor whose proof reads the same bytes again. Otherwise the proof hashes the
// bytes that it reads.
func (e *execution) hashesWriting(t *plan.Tensor) bool { return e.Unverified || e.comparedWriting(t) }

// comparedWriting reports whether t is compared with the source when it is written: a tensor of blocks, or
// any of a source that is read once.
func (e *execution) comparedWriting(t *plan.Tensor) bool { return e.Origin != "" || t.Encodes() }

// computing runs f while the goroutine counts as one that computes.
func (e *execution) computing(ctx context.Context, f func() error) error {
	if err := e.compute.Acquire(ctx, 1); err != nil {
		return err
	}
	defer e.compute.Release(1)
	return f()
}

// checkSource refuses a source whose weights changed during the run: the output may mix
// two states.
func (e *execution) checkSource() error {
	key, err := e.source.Key()
	if err == nil && key != e.key {
		err = errors.New("the source's weight files changed while the conversion ran")
	}
	return err
}

// flush makes the written bytes durable, then records them in the journal.
func (e *execution) flush() error {
	e.flushing.Lock()
	defer e.flushing.Unlock()
	n := e.Take()
	if n.Lines == nil {
		return nil
	}
	return e.out.Record(n)
}

// lost lists the tensors with elements that changed or are not finite.
func (e *execution) lost() (lost []LostTensor) {
	for i := range e.States {
		if total := e.States[i].Lost.Total(); total.Any() {
			lost = append(lost, LostTensor{e.Spans[i].Name, total})
		}
	}
	return lost
}
