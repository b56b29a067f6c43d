package count

// The arithmetic of the DeepSeekMoE paper (arXiv:2401.06066): experts that are split
// (fine-grained segmentation) and shared (shared expert isolation) at equal cost, and the
// convention of its tables for counting FLOPs. Letters are the paper's.

import (
	"errors"
	"fmt"
	"math"
	"math/big"

	"dsmoe/config"
)

// Segmentation is the paper's way to an MoE layer: each expert of a conventional layer of N
// experts, K of them active, is split into m; of the mN parts, K_s are isolated as shared
// experts. Make one with Segment or SegmentationOf.
type Segmentation struct {
	Experts  int // mN: n_routed_experts + n_shared_experts
	PerToken int // mK: num_experts_per_tok + n_shared_experts
	M        int // m: an expert is 1/m of a conventional one
	Shared   int // K_s: n_shared_experts

	Hidden       int // d: hidden_size; 0 if unknown
	Intermediate int // d_ff: the width of a conventional expert, a multiple of M; 0 if unknown
}

// Segment splits a layer of n experts, k active, by m and isolates shared of them.
// hidden and intermediate, the layer's dimensions, are both 0 if unknown. One error lists all
// problems.
func Segment(n, k, m, shared, hidden, intermediate int) (Segmentation, error) {
	err := errors.Join(
		limited("N", n, 1, maxSegments), limited("K", k, 1, maxSegments), limited("m", m, 1, maxSegments),
		limited("hidden size d", hidden, 0, maxWidth), limited("intermediate size d_ff", intermediate, 0, maxWidth),
		problem(k > n, "K = %d is more than N = %d", k, n),
		problem(shared < 0 || shared >= m*k && m > 0 && k > 0, "K_s = %d is not in 0..%d, below mK", shared, m*k-1),
		problem((hidden == 0) != (intermediate == 0), "hidden size d and intermediate size d_ff are needed together"),
		problem(m > 0 && intermediate%m != 0, "intermediate size d_ff = %d is not a multiple of m = %d: "+
			"parameters would not stay equal; %d is one", intermediate, m, (intermediate+m-1)/max(m, 1)*m),
	)
	if err == nil {
		err = problem(m*n > maxSegments, "mN = %d is more than %d", m*n, maxSegments)
	}
	s := Segmentation{m * n, m * k, m, shared, hidden, intermediate}
	return s, err
}

// maxSegments and maxWidth keep counts within 64 bits, and combinations quick.
const (
	maxSegments = 1 << 16
	maxWidth    = 1 << 22
)

// limited returns an error unless low ≤ n ≤ high.
func limited(name string, n, low, high int) error {
	return problem(n < low || n > high, "%s = %d is not in %d..%d", name, n, low, high)
}

// problem returns an error if holds is true.
func problem(holds bool, format string, args ...any) error {
	if !holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// SegmentationOf reads c's MoE layers as the outcome of a split by m. The config gives mN, mK,
// K_s and the width of an expert; the experts before the split have the width d_ff = m ·
// moe_intermediate_size. An m of 0 means the paper's 4, or mK if mK is less.
// (intermediate_size is the width of a dense layer: in DeepSeekMoE-16B that layer is as large
// as all active experts.)
func SegmentationOf(c *config.Config, m int) (Segmentation, error) {
	if c.MoE.NRoutedExperts == 0 {
		return Segmentation{}, errors.New("the model is dense: it has no experts to compare")
	}
	if width := c.MoE.SharedIntermediateSize; width != 0 && width != c.MoE.MoEIntermediateSize {
		return Segmentation{}, fmt.Errorf("the shared expert is %d wide, a routed one %d: the paper's are equally wide", width,
			c.MoE.MoEIntermediateSize)
	}
	s := Segmentation{Experts: c.MoE.NRoutedExperts + c.MoE.NSharedExperts, PerToken: c.MoE.NumExpertsPerTok +
		c.MoE.NSharedExperts,
		Shared: c.MoE.NSharedExperts, Hidden: c.HiddenSize}
	if m == 0 {
		m = min(4, s.PerToken)
	}
	s.M, s.Intermediate = m, m*c.MoE.MoEIntermediateSize
	return s, problem(m < 1 || m > s.PerToken, "m = %d is not in 1..%d, the active experts mK", m, s.PerToken)
}

// Conventional returns the layer before the split: top-K of N experts of width d_ff.
// N = mN/m and K = mK/m are rounded down; in a config they need not be whole:
// DeepSeekMoE-16B has 66 experts of a quarter.
func (s Segmentation) Conventional() PaperLayer {
	return PaperLayer{Routed: s.Experts / s.M, Active: s.PerToken / s.M, M: 1, Hidden: s.Hidden, Width: s.Intermediate}
}

// FineGrained returns the layer after fine-grained segmentation: mK of mN experts of
// width d_ff/m.
func (s Segmentation) FineGrained() PaperLayer {
	return PaperLayer{Routed: s.Experts, Active: s.PerToken, M: s.M, Hidden: s.Hidden, Width: s.Intermediate / s.M}
}

// SharedIsolated returns DeepSeekMoE's layer: K_s shared experts that every token
// uses, and mK − K_s of mN − K_s routed ones.
func (s Segmentation) SharedIsolated() PaperLayer {
	l := s.FineGrained()
	l.Shared, l.Routed, l.Active = s.Shared, l.Routed-s.Shared, l.Active-s.Shared
	return l
}

// PaperLayer is one MoE layer in the terms of the paper. Parameters and FLOPs are 0 if the
// dimensions are unknown.
type PaperLayer struct {
	Shared int // experts that every token uses: n_shared_experts
	Routed int // experts from which the gate chooses: n_routed_experts
	Active int // experts that the gate chooses, whose g is not zero: num_experts_per_tok
	M      int // an expert is 1/M of a conventional FFN
	Hidden int // d: hidden_size
	Width  int // d_ff/M: moe_intermediate_size
}

// FFNs returns the experts' parameters in conventional FFNs: (Shared + Routed) / M of all experts and
// (Shared + Active) / M of those that one token uses. The experts' compute is proportional to the latter.
func (l PaperLayer) FFNs() (all, activated float64) {
	return float64(l.Shared+l.Routed) / float64(l.M), float64(l.Shared+l.Active) / float64(l.M)
}

// ExpertParameters returns the parameters of all experts and of those that one token uses. An expert is gate_proj,
// up_proj and down_proj, 3 · d · width.
func (l PaperLayer) ExpertParameters() (all, activated int64) {
	expert := 3 * int64(l.Hidden) * int64(l.Width)
	return int64(l.Shared+l.Routed) * expert, int64(l.Shared+l.Active) * expert
}

// RouterParameters returns Routed · d, the size of MoEGate.weight. It grows with m: the paper
// keeps only the experts' parameters equal.
func (l PaperLayer) RouterParameters() int64 { return int64(l.Routed) * int64(l.Hidden) }

// Combinations returns C(Routed, Active), the sets of experts that a token can get.
func (l PaperLayer) Combinations() *big.Int {
	return new(big.Int).Binomial(int64(l.Routed), int64(l.Active))
}

// Nonzero returns the share of the gates g that are not zero: Active / Routed.
func (l PaperLayer) Nonzero() float64 { return float64(l.Active) / float64(l.Routed) }

// PaperModel holds the sizes that determine the FLOPs of the paper's tables. They are
// idealised: see FLOPs and PaperModelOf.
type PaperModel struct {
	Layers    int     // L: num_hidden_layers
	Hidden    int     // d: hidden_size
	Vocab     int     // V: vocab_size
	Seq       int     // T: tokens in the sequence
	ActiveFFN float64 // A: the FFN parameters that one token uses, all layers together
}

// FLOPs returns the floating point operations of training on one sequence by the
// convention of the paper's tables:
//
//	T · (L·(24·d² + 12·d·T) + 6·V·d + 6·A)
//
// That is 2 per multiply-add and 3 times the forward pass, for the backward; four
// attention matrices of d², full attention though half of it is masked, the head,
// the FFNs; no router, no norms.
func (p PaperModel) FLOPs() float64 {
	d, seq := float64(p.Hidden), float64(p.Seq)
	layers := float64(p.Layers) * (24*d*d + 12*d*seq)
	return seq * (layers + 6*float64(p.Vocab)*d + 6*p.ActiveFFN)
}

// standardFFN returns 8·d², the parameters of the paper's standard FFN: three
// matrices of d × 8/3·d, without rounding 8/3·d.
func standardFFN(hidden int) float64 { return 8 * float64(hidden) * float64(hidden) }

// StandardFFNs returns the size of an FFN in standard FFNs, as the paper's tables count: the
// nearest whole number, or below one the nearest 1/n. In DeepSeekMoE-16B, where 8/3·d = 5461.3,
// an expert of width 1408 is 1/4, and the dense layer of width 10944 is 2.
func StandardFFNs(width, hidden int) float64 {
	ratio := float64(width) / (float64(hidden) * 8 / 3)
	if ratio < 1 {
		return 1 / math.Round(1/ratio)
	}
	return math.Round(ratio)
}

// PaperModelOf idealises c as the paper's tables do: every FFN counts as StandardFFNs standard
// FFNs, and attention as four matrices of d², for any number of key-value heads.
func PaperModelOf(c *config.Config, seq int) PaperModel {
	ffns := 0.0
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) {
			ffns += float64(c.MoE.NSharedExperts+c.MoE.NumExpertsPerTok) * StandardFFNs(c.MoE.MoEIntermediateSize, c.HiddenSize)
		} else {
			ffns += StandardFFNs(c.IntermediateSize, c.HiddenSize)
		}
	}
	return PaperModel{Layers: c.NumHiddenLayers, Hidden: c.HiddenSize, Vocab: c.VocabSize, Seq: seq,
		ActiveFFN: ffns * standardFFN(c.HiddenSize)}
}
