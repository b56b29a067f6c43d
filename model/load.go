package model

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// MismatchError lists every way in which a source's tensors differ from the
// weights that its config implies: Missing and Wrong in the model's order,
// Unexpected in the source's.
type MismatchError struct {
	Missing    []Slot
	Wrong      []Wrong
	Unexpected []tensor.Info
}

// Wrong is a tensor that has the right name but not the right shape, or a dtype
// that the model does not compute with.
type Wrong struct {
	Got   tensor.Info
	Want  []int
	Cause string // what is wrong beside the shape
}

// maxFindings is how many findings of a MismatchError its message spells out.
const maxFindings = 20

// Error names the first findings of each kind and counts the rest, on one line.
func (e *MismatchError) Error() string {
	lines := e.Findings()
	n := len(lines)
	if n > maxFindings {
		lines = append(lines[:maxFindings], fmt.Sprintf("and %d more", n-maxFindings))
	}
	return fmt.Sprintf("config and tensors do not fit, %d findings: %s", n, strings.Join(lines, "; "))
}

// Findings returns a line per finding.
func (e *MismatchError) Findings() []string {
	var lines []string
	for _, s := range e.Missing {
		lines = append(lines, fmt.Sprintf("%s: missing, shape %v is due", s.Name, s.Shape))
	}
	for _, w := range e.Wrong {
		lines = append(lines, w.String())
	}
	for _, i := range e.Unexpected {
		lines = append(lines, fmt.Sprintf("%q: unexpected, shape %v", i.Name, i.Shape))
	}
	return lines
}

// String says what is wrong with the tensor.
func (w Wrong) String() string {
	if !slices.Equal(w.Got.Shape, w.Want) {
		return fmt.Sprintf("%s: shape %v, config says %v", w.Got.Name, w.Got.Shape, w.Want)
	}
	return w.Got.Name + ": " + w.Cause
}

// Load binds every weight that c implies to src's tensors, in any form that Canonical
// knows, as views: nothing is read but the scales of FP8 weights. If a weight is missing, has another shape or an unsupported dtype, or if src
// holds tensors that the table does not know, the error is a *MismatchError with all
// of them.
func Load(c *config.Config, src Source) (*DeepseekForCausalLM, error) {
	src = Canonical(src)
	if err := Check(c, src); err != nil {
		return nil, err
	}
	m := newModel(c)
	for s := range FamilyOf(c).Slots(c) {
		w, err := loadWeight(c, src, s.Name)
		if err != nil {
			return nil, err
		}
		*s.Param.place(m, s.Layer, s.Expert) = w
	}
	if c.TieWordEmbeddings {
		m.LMHead.Weight = m.Model.EmbedTokens
	}
	return m, nil
}

// loadWeight views a tensor, and reads its scales if it is FP8.
func loadWeight(c *config.Config, src Source, name string) (Weight, error) {
	t, err := src.Tensor(name)
	w := Weight{Name: name, Tensor: t}
	if err != nil || t.DType != tensor.F8E4M3 {
		return w, err
	}
	w.Block = c.FP8Block
	scales, err := src.Tensor(name + scaleSuffix)
	if err != nil {
		return w, err
	}
	w.Scales, err = scales.Float32s(nil)
	return w, err
}

// Check compares src's headers, in any form that Canonical knows, with the weights
// that c implies and returns nil or a *MismatchError. It reads no data.
func Check(c *config.Config, src Source) error {
	k := &checker{c: c, f: FamilyOf(c), held: map[string]tensor.Info{}, known: map[string]bool{}}
	src = Canonical(src)
	for i := range src.Tensors() {
		k.held[i.Name] = i
	}
	for s := range k.f.Slots(c) {
		k.check(s, true)
	}
	for s := range k.f.MTPSlots(c) {
		k.check(s, false)
	}
	for s := range expand(k.f.Ignored, c, 0, c.NumHiddenLayers) {
		k.known[s.Name] = true
	}
	for i := range src.Tensors() {
		if !k.known[i.Name] {
			k.found.Unexpected = append(k.found.Unexpected, i)
		}
	}
	if e := &k.found; len(e.Missing)+len(e.Wrong)+len(e.Unexpected) > 0 {
		return e
	}
	return nil
}

// checker compares headers with slots.
type checker struct {
	c     *config.Config
	f     *Family
	held  map[string]tensor.Info
	known map[string]bool
	found MismatchError
}

// check looks for one slot, which must be there if it is due.
func (k *checker) check(s Slot, due bool) {
	k.known[s.Name] = true
	got, ok := k.held[s.Name]
	switch {
	case !ok && due:
		k.found.Missing = append(k.found.Missing, s)
	case !ok:
	case !slices.Equal(got.Shape, s.Shape):
		k.found.Wrong = append(k.found.Wrong, Wrong{Got: got, Want: s.Shape})
	case got.DType == tensor.F8E4M3:
		k.checkFP8(s, got)
	default:
		if _, ok := got.DType.Format(); !ok {
			k.wrong(s, got, fmt.Sprintf("dtype %s, the model computes with F32, F16, BF16 and F8_E4M3", got.DType))
		}
	}
}

func (k *checker) wrong(s Slot, got tensor.Info, cause string) {
	k.found.Wrong = append(k.found.Wrong, Wrong{Got: got, Want: s.Shape, Cause: cause})
}

// checkFP8 looks for an FP8 weight's scales, wherever they are.
func (k *checker) checkFP8(s Slot, got tensor.Info) {
	block := k.c.FP8Block
	name := s.Name + scaleSuffix
	scale, ok := k.held[name]
	k.known[name] = true
	switch {
	case block[0] == 0:
		k.wrong(s, got, "dtype F8_E4M3, but config.json has no quantization_config")
	case len(s.Shape) != 2 || s.Param.Module == Embedding:
		k.wrong(s, got, "dtype F8_E4M3, which only matrix products take")
	case !ok:
		k.wrong(s, got, "dtype F8_E4M3, but its scales, weight_scale_inv, are in no shard")
	case scale.DType != tensor.F32:
		k.wrong(s, got, fmt.Sprintf("weight_scale_inv has dtype %s, F32 is due", scale.DType))
	default:
		rows, cols := tensor.Blocks{Rows: s.Shape[0], Cols: s.Shape[1], BlockRows: block[0], BlockCols: block[1]}.Grid()
		if !slices.Equal(scale.Shape, []int{rows, cols}) {
			k.wrong(s, got, fmt.Sprintf("weight_scale_inv has shape %v, blocks of %v give [%d %d]", scale.Shape, block, rows, cols))
		}
	}
}
