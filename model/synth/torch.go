package synth

import (
	"encoding/binary"
	"sync"

	"dsmoe/config"
	"dsmoe/model/table"
)

// Torch returns the synthetic weights of c, but with the gates as
// MoEGate.reset_parameters draws them, layer by layer from one stream, rounded to BF16:
//
//	torch.manual_seed(seed)
//	for l in moe_layers:                      # those with a DeepseekMoE, ascending
//	    w = torch.empty(n_routed_experts, hidden_size)
//	    torch.nn.init.kaiming_uniform_(w, a=math.sqrt(5))
//	    state_dict[f"model.layers.{l}.mlp.gate.weight"] = w.bfloat16()
//
// A model that the reference builds draws for its other modules in between, so its gates
// differ. Calls of Fill may come in any order: Fill remembers the generator at every 2^20th
// value of the stream.
func Torch(c *config.Config, seed uint64) *Source {
	s := New(c, seed)
	s.gates = &torchGates{first: map[string]int64{}, fanIn: c.HiddenSize, marks: []mt19937{*newMT19937(seed)}}
	next := int64(0)
	for slot := range table.FamilyOf(c).Slots(c) {
		if slot.Role() == table.Gate { // the reference does not draw e_score_correction_bias
			s.gates.first[slot.Name] = next
			next += int64(c.MoE.NRoutedExperts) * int64(c.HiddenSize)
		}
	}
	return s
}

// torchGates is the stream of all gates' values, one after the other.
type torchGates struct {
	first map[string]int64 // position of the first value of a gate in the stream
	fanIn int              // values in a row

	lock  sync.Mutex
	marks []mt19937 // marks[i] has drawn i·markEvery values
}

// markEvery is the distance between marks: skipping it takes a few milliseconds.
const markEvery = 1 << 20

// fill writes the bytes from offset on of a gate's weight, whose first value has the position first in the stream. The
// last values drawn may be more than dst takes; the generator is a copy.
func (t *torchGates) fill(first int64, dst []byte, offset int64) {
	var values [512]float32
	var data [2 * len(values)]byte
	next := first + offset/2
	g := t.mark(int(next / markEvery))
	g.skip(next % markEvery)
	for from := offset % 2; len(dst) > 0; from = 0 {
		g.kaimingUniform(values[:], t.fanIn)
		for i, v := range values {
			binary.LittleEndian.PutUint16(data[2*i:], bf16(v))
		}
		dst = dst[copy(dst, data[from:]):]
	}
}

// mark returns the generator that has drawn n·markEvery values of the stream.
func (t *torchGates) mark(n int) mt19937 {
	t.lock.Lock()
	defer t.lock.Unlock()
	for len(t.marks) <= n {
		g := t.marks[len(t.marks)-1]
		g.skip(markEvery)
		t.marks = append(t.marks, g)
	}
	return t.marks[n]
}
