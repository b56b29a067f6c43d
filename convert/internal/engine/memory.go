package engine

import (
	"fmt"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// What carrying out a plan takes beside the plan.
const (
	// program is the bytes of memory of the program before it does anything: its code and
	// the tables of Go's runtime.
	program = 16 << 20
	// leastBuffers are the bytes of buffers with which a few workers can go on.
	leastBuffers = 12 << 20
	// perState is the bytes that are kept of a tensor: how far it has come, and its proof.
	perState = 180
	// perHash is the bytes that are kept of the hash of a segment that is no plain copy.
	perHash = 96
)

// HeapLimit returns what Go's heap is to stay below, for debug.SetMemoryLimit, so that the
// program stays below memory.
func HeapLimit(memory int64) int64 { return usable(memory) - program }

// usable is what of memory can be planned with: the heap grows beyond what is in use, and
// for moments beyond its limit.
func usable(memory int64) int64 { return memory - memory/8 }

// CheckPlanning refuses a conversion whose planning takes that many bytes, more than there
// are. What is enough for the planning is enough for the conversion.
func (s Settings) CheckPlanning(path string, planning int64) error {
	return s.withDefaults().check(path, program+planning+leastBuffers)
}

// CheckPlan refuses a plan, to be written to path, that cannot be carried out within the
// memory that there is.
func (s Settings) CheckPlan(path string, p *plan.Plan) error {
	return s.withDefaults().check(path, held(p)+leastBuffers)
}

// check compares the bytes that are needed with those that there are.
func (s Settings) check(path string, need int64) error {
	if need <= usable(s.Memory) {
		return nil
	}
	const unit = 1 << 20
	need = need * 8 / 7
	return &checkpoint.Error{Path: path, Problems: []checkpoint.Problem{{
		Cause: fmt.Sprintf("its list of tensors does not fit in %s of memory", text.Bytes(s.Memory)),
		Hint:  fmt.Sprintf("--max-memory %dMiB is enough", need/unit+1)}}}
}

// held is the bytes of memory that are not free for buffers.
func held(p *plan.Plan) int64 {
	n := program + p.Memory() + int64(len(p.Tensors))*perState
	for i := range p.Tensors {
		if t := &p.Tensors[i]; !t.Copies() {
			n += int64(len(t.Segments)) * perHash
		}
	}
	return n
}
