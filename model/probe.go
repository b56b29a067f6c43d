package model

import (
	"fmt"
	"slices"
)

// Probe is experts of a layer that run on some of its tokens, whatever its gate chooses.
type Probe struct {
	Rows    []int // of what the mixture of experts takes, [tokens, hidden_size]
	Experts []int // their numbers
}

// probe runs the experts of layer l that Options.Probes names on rows of x [tokens,
// hidden_size], one expert after the other. Each is a stage, name.E.probe.output [rows,
// hidden_size], which nothing else depends on.
func (p *pass[V]) probe(l int, name string, m *DeepseekMoE, x V) {
	probe := p.o.Probes[l]
	p.stopIf(probe.check(l, p.in.Batch*p.in.Seq, len(m.Experts)))
	for i, e := range probe.Experts {
		p.fetchExperts(l, probe.Experts[i:min(i+2, len(probe.Experts))])
		p.Scope(x, func(x V) V {
			p.expert(fmt.Sprintf("%s.%d.probe", name, e), &m.Experts[e], x, probe.Rows)
			return x
		})
		p.dropExpert(l, e)
	}
}

// check says which row or expert is not there.
func (probe *Probe) check(l, tokens, experts int) error {
	if i := slices.IndexFunc(probe.Rows, func(row int) bool { return row < 0 || row >= tokens }); i >= 0 {
		return fmt.Errorf("probes of layer %d: row %d is not one of %d", l, probe.Rows[i], tokens)
	}
	if i := slices.IndexFunc(probe.Experts, func(e int) bool { return e < 0 || e >= experts }); i >= 0 {
		return fmt.Errorf("probes of layer %d: expert %d is not one of %d", l, probe.Experts[i], experts)
	}
	return nil
}
