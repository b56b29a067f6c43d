package inspect

// What an expert computes, on a few inputs that all experts of a layer are given: a number that
// the order of its neurons does not change.

import (
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// probeCount is the number of inputs.
const probeCount = 8

// probesOf returns the inputs of a layer's experts [probeCount, hidden]: what
// post_attention_layernorm makes of vectors of ±1, whose RMS is 1. Without its weight they
// are these.
func probesOf(hidden int, norm []float32) []float32 {
	probes := make([]float32, probeCount*hidden)
	for p := range probeCount {
		for c := range hidden {
			v := sign(p, c)
			if len(norm) == hidden {
				v *= norm[c]
			}
			probes[p*hidden+c] = v
		}
	}
	return probes
}

// activation is a matrix as the arithmetic has it.
func activation(values []float32, width int) *model.Activation {
	return &model.Activation{Shape: []int{len(values) / width, width}, Values: values, DType: tensor.F32}
}

// hidden returns SiLU(gate) ∘ up.
func hidden(p *model.Plain, gate, up []float32, neurons int) []float32 {
	return p.SwiGLU(activation(gate, neurons), activation(up, neurons)).Values
}

// examined is what of an expert is compared with others.
type examined struct {
	matrices  [projections]examinedMatrix
	responses [downProj][]float32 // what gate_proj and up_proj make of the probes [probeCount, neurons]
	output    []float32           // what the expert makes of them [probeCount, hidden]; nil if a matrix is missing
}

// neurons returns a hash of each neuron's three vectors.
func (x *examined) neurons() []uint64 {
	all := make([]uint64, len(x.matrices[gateProj].neurons))
	for i := range all {
		for p := range projections {
			all[i] = mixed(all[i], x.matrices[p].neurons[i])
		}
	}
	return all
}

// zeroNeurons counts the neurons one of whose vectors is all zero.
func (x *examined) zeroNeurons() (n int) {
	for i := range x.matrices[gateProj].zero {
		if x.matrices[gateProj].zero[i] || x.matrices[upProj].zero[i] || x.matrices[downProj].zero[i] {
			n++
		}
	}
	return n
}
