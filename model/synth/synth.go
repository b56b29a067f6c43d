// Package synth makes the weights of a config without storing any. New's values follow from a
// seed, the name and the index. Torch's gates are the weights that the reference's
// MoEGate.reset_parameters draws from torch's generator. Both are a weights.Source.
package synth

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Source is a source of deterministic weights for a config: BF16 and, under a
// quantization_config, codes with F32 scales. Nothing is stored: a value follows from the seed,
// the tensor's name and the value's index, so that any part of any tensor can be made at any
// time, with the same bits on every machine. The arithmetic is float32:
//
//	key = fnv1a64(name) xor seed
//	x_i = splitmix64 finaliser of key + (i+1)·0x9E3779B97F4A7C15, i the row-major index
//	u_i = float32(x_i >> 40)·2^-23 - 1                      in [-1, 1)
//	w_i = bf16, rounded to nearest, ties to even, of
//	      1 + 0.1·u                     for tensors of rank 1
//	      u · float32(sqrt(3))          for model.embed_tokens.weight
//	      u · float32(1.5·sqrt(3/d))    for *.mlp.gate.weight, d the last dimension
//	      u · float32(sqrt(3/d))        for every other matrix
//
// Square roots, and their product with 1.5, are float64. The factors keep the variance of the
// residual stream near 1 and the gates decisive.
//
// A matrix whose stored form (table.Slot.Form) has scales holds codes w. Its scales s, one F32
// for each block of weight_block_size, are a tensor with its own name and indices:
//
//	w_i = code, rounded to nearest, ties to even, of M·u, M the form's largest: 448 of FP8
//	s_j = float32(sqrt(3/d)/M) · (1 + 0.1·u_j), d the last dimension of the matrix
//
// Weights that the reference keeps in F32 whatever the model's dtype (table.Row.Parameter), where they are published so,
// are w_i as F32. Row t of a table of experts holds num_experts_per_tok different ones of n:
//
//	e_j = (a + j·b) mod n, a = x_t mod n, b = 1 + (x_t >> 32) mod (n - 1), or 1 if that repeats an expert
//
// Source from Torch has another rule for the gates.
type Source struct {
	config *config.Config
	seed   uint64
	made   map[string]made
	gates  *torchGates // nil if the gates follow the rule above
}

// made is a tensor of the source.
type made struct {
	tensor.Info
	slot  table.Slot // the weight, or the weight of the scales
	width int        // last dimension of the matrix of the scales; 0 for a weight
}

// New returns the synthetic weights of c.
func New(c *config.Config, seed uint64) *Source {
	s := &Source{config: c, seed: seed, made: map[string]made{}}
	for m := range s.all() {
		s.made[m.Name] = m
	}
	return s
}

// Tensors yields every weight that the config implies, in the table's order, followed by its
// scales.
func (s *Source) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for m := range s.all() {
			if !yield(m.Info) {
				return
			}
		}
	}
}

// all yields the tensors.
func (s *Source) all() iter.Seq[made] {
	return func(yield func(made) bool) {
		for slot := range table.FamilyOf(s.config).Slots(s.config) {
			for i, info := range slot.Tensors(s.config, tensor.BF16) {
				m := made{Info: info, slot: slot}
				if i > 0 {
					m.width = slot.Shape[1]
				}
				if !yield(m) {
					return
				}
			}
		}
	}
}

// Tensor makes a whole tensor in memory.
func (s *Source) Tensor(name string) (tensor.Tensor, error) {
	m, ok := s.made[name]
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("synthetic weights: %s: the config has no such tensor", text.Quote(name))
	}
	t := tensor.Tensor{DType: m.DType, Shape: m.Shape, Data: make([]byte, m.Bytes())}
	return t, s.Fill(m.Info, t.Data, 0)
}

// Fill writes the bytes of the tensor from offset on to dst. A tensor may be made in
// parts of any size, in any order; the bytes are the same.
func (s *Source) Fill(info tensor.Info, dst []byte, offset int64) error {
	own, ok := s.made[info.Name]
	if !ok || own.DType != info.DType || !slices.Equal(own.Shape, info.Shape) {
		return fmt.Errorf("synthetic weights: %s: the config has no such tensor of %s %v",
			text.Quote(info.Name), info.DType, info.Shape)
	}
	if offset < 0 || offset+int64(len(dst)) > info.Bytes() {
		return fmt.Errorf("synthetic weights: %s: bytes %d..%d of %d",
			text.Quote(info.Name), offset, offset+int64(len(dst)), info.Bytes())
	}
	if s.gates != nil {
		if first, ok := s.gates.first[info.Name]; ok {
			s.gates.fill(first, dst, offset)
			return nil
		}
	}
	hash := fnv.New64a()
	hash.Write([]byte(info.Name))
	g := generator{key: hash.Sum64() ^ s.seed}
	switch form := own.slot.Form(s.config); {
	case own.width > 0:
		base := float32(math.Sqrt(3/float64(own.width)) / float64(form.Largest))
		elements(dst, uint64(offset), 4, func(i uint64) uint64 {
			return uint64(math.Float32bits(base * (1 + float32(0.1*g.u(i)))))
		})
	case info.DType.Scaled():
		for k := range dst { // one byte per code
			dst[k] = form.Nearest(form.Largest * g.u(uint64(offset)+uint64(k)))
		}
	case own.slot.Row.Integer():
		g.fillTable(dst, uint64(offset), uint64(info.Shape[1]), uint64(s.config.MoE.NRoutedExperts))
	case info.DType == tensor.F32:
		g.base, g.scale = affine(own.slot.Role(), info.Shape)
		elements(dst, uint64(offset), 4, func(i uint64) uint64 { return uint64(g.at(i)) << 16 })
	default:
		g.base, g.scale = affine(own.slot.Role(), info.Shape)
		g.fill(dst, uint64(offset))
	}
	return nil
}

// affine returns the rule of a weight's values, w = base + scale·u.
func affine(role table.Role, shape []int) (base, scale float32) {
	switch d := shape[len(shape)-1]; {
	case len(shape) == 1:
		return 1, 0.1
	case role == table.EmbedTokens:
		return 0, float32(math.Sqrt(3))
	case role == table.Gate:
		return 0, float32(1.5 * math.Sqrt(3/float64(d)))
	default:
		return 0, float32(math.Sqrt(3 / float64(d)))
	}
}

// generator makes the values of one tensor.
type generator struct {
	key         uint64
	base, scale float32
}

// fill writes the bytes from offset on, four values at a time; it may begin and end inside a value.
func (g generator) fill(dst []byte, offset uint64) {
	i := offset / 2
	if offset%2 == 1 && len(dst) > 0 {
		dst[0] = byte(g.at(i) >> 8)
		dst, i = dst[1:], i+1
	}
	for ; len(dst) >= 8; dst, i = dst[8:], i+4 {
		four := uint64(g.at(i)) | uint64(g.at(i+1))<<16 | uint64(g.at(i+2))<<32 | uint64(g.at(i+3))<<48
		binary.LittleEndian.PutUint64(dst, four)
	}
	elements(dst, 2*i, 2, func(i uint64) uint64 { return uint64(g.at(i)) })
}

// fillTable writes bytes of a table with rows of k experts of n.
func (g generator) fillTable(dst []byte, offset, k, n uint64) {
	elements(dst, offset, 8, func(i uint64) uint64 {
		x, step := mix(g.key+(i/k+1)*0x9E3779B97F4A7C15), uint64(1)
		if n > 1 {
			step += (x >> 32) % (n - 1)
		}
		for j := range k {
			if j > 0 && j*step%n == 0 {
				step = 1
			}
		}
		return (x%n + i%k*step) % n
	})
}

// elements writes the bytes from offset on of elements of size bytes; it may begin and end inside one.
func elements(dst []byte, offset, size uint64, at func(i uint64) uint64) {
	var element [8]byte
	for len(dst) > 0 {
		binary.LittleEndian.PutUint64(element[:], at(offset/size))
		n := copy(dst, element[offset%size:size])
		dst, offset = dst[n:], offset+uint64(n)
	}
}

// at returns the bits of value i. Every product is rounded before it is added: a fused
// multiply-add would differ in the last bit.
func (g generator) at(i uint64) uint16 { return bf16(g.base + float32(g.scale*g.u(i))) }

// u returns the uniform number of value i, in [-1, 1).
func (g generator) u(i uint64) float32 {
	return float32(float32(int32(mix(g.key+(i+1)*0x9E3779B97F4A7C15)>>40))*0x1p-23) - 1
}

// bf16 rounds v, which is finite, to nearest, ties to even.
func bf16(v float32) uint16 {
	b := math.Float32bits(v)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// mix is the finaliser of splitmix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
