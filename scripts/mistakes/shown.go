package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// first returns the stage at which the report should see the mistake first, "" if no stage of the pack shows it. A
// golden pack has the mistake's own. A trace of an engine may lack that one, or have another one within the same module:
// it is the first of the trace's stages, in the order of computation, that the mistake changes.
func (m *mistake) first(s *subject) (string, error) {
	if !s.golden.IsTrace() {
		return s.expand(m.stage), nil
	}
	right, err := s.right()
	if err != nil {
		return "", err
	}
	wrong, err := s.runStages(s.config, s)
	if err != nil {
		return "", err
	}
	for _, name := range right.names {
		if s.golden.Has(name) && !slices.Equal(right.values[name], wrong.values[name]) {
			return name, nil
		}
	}
	return "", nil
}

// rightTrace is what the checkpoint of a trace gives without a mistake.
type rightTrace struct {
	*stages
	recognised []report.Recognised // how the engine rounds
}

// rightTraces are functions that return a rightTrace, by the directory of a trace.
var rightTraces sync.Map

// right returns what the subject gives without its mistake.
func (s *subject) right() (*rightTrace, error) {
	once, _ := rightTraces.LoadOrStore(s.golden.Dir, sync.OnceValues(func() (*rightTrace, error) {
		of, err := s.runStages(s.checkpoint.Config, s.checkpoint)
		if err != nil {
			return nil, err
		}
		o := verify.Options{Parallelism: 1, Undiagnosed: true}
		r, err := verify.Run(context.Background(), s.checkpoint.Config, s.checkpoint, s.golden, o)
		if err != nil {
			return nil, err
		}
		return &rightTrace{of, r.Golden.Recognised}, nil
	}))
	return once.(func() (*rightTrace, error))()
}

// stages are the stages of one run, in the order of computation.
type stages struct {
	golden *pack.Pack
	names  []string
	values map[string][]float32 // of a choice of experts their numbers
}

// runStages runs a model over the pack's tokens. Each stage that the pack has is computed from the pack's own.
func (s *subject) runStages(c *config.Config, src weights.Source) (*stages, error) {
	in, err := s.golden.Input()
	if err != nil {
		return nil, err
	}
	m, err := model.Load(c, src)
	if err != nil {
		return nil, err
	}
	o, of := s.modelOptions(), &stages{golden: s.golden, values: map[string][]float32{}}
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: of}
	_, err = net.Forward(context.Background())
	return of, err
}

// Stage implements model.Trace.
func (s *stages) Stage(name string, x *model.Activation) error {
	s.names = append(s.names, name)
	s.values[name] = slices.Clone(x.Values)
	if e := s.golden.Manifest.Tensors[name]; !s.golden.Has(name) || e.Elements() != len(x.Values) {
		return nil
	}
	values, err := s.golden.Float32s(name)
	copy(x.Values, values)
	return err
}

// TopK implements model.Trace.
func (s *stages) TopK(name string, c *model.Choice[*model.Activation]) error {
	s.names = append(s.names, name)
	for _, e := range c.Idx {
		s.values[name] = append(s.values[name], float32(e))
	}
	if !s.golden.Has(name) {
		return nil
	}
	chosen, err := s.golden.Ints(name)
	if len(chosen) == len(c.Idx) {
		copy(c.Idx, chosen)
	}
	return err
}

// declare has the trace declare how its engine rounds attention and experts, which is read off the trace without a
// mistake: there are dozens of ways to try. It does not where the mistake shows in these first.
func (s *subject) declare(first string) error {
	right, err := s.right()
	if err != nil {
		return err
	}
	shown := map[string]string{pack.Attended: "attention", "mlp.output": "experts and shared"}[pack.Parse(first).Within]
	s.golden.Manifest.Arithmetic = &pack.Arithmetic{Rounding: map[string]string{}}
	for _, k := range right.recognised {
		if len(k.Ways) > 1 && k.Kind != shown {
			maps.Copy(s.golden.Manifest.Arithmetic.Rounding, k.Ways)
		}
	}
	return nil
}

// unseen reports whether a report without a failure says that no stage shows the weights that a mistake changed.
func (s *subject) unseen(r *report.Report) bool {
	return r.Verdict == report.Pass && len(s.changed) > 0 && r.Scope.LeftOut >= len(s.changed)
}

// blamed reports whether the cause names a weight that the mistake changed, whose product failed.
func (s *subject) blamed(r *report.Report) bool {
	weight := strings.TrimSuffix(*r.FirstDivergence, "output") + "weight"
	_, changed := s.changed[s.stored(weight)]
	return changed && strings.Contains(r.Cause.Text, weight+" ")
}
