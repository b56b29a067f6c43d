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
	Got  tensor.Info
	Want []int
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
	return fmt.Sprintf("%s: dtype %s, the model computes with F32, F16 and BF16", w.Got.Name, w.Got.DType)
}

// Load binds every weight that c implies to src's tensors, as views: nothing is
// read. If a weight is missing, has another shape or an unsupported dtype, or if src
// holds tensors that the table does not know, the error is a *MismatchError with all
// of them.
func Load(c *config.Config, src Source) (*DeepseekForCausalLM, error) {
	if err := Check(c, src); err != nil {
		return nil, err
	}
	m := newModel(c)
	for s := range FamilyOf(c).Slots(c) {
		t, err := src.Tensor(s.Name)
		if err != nil {
			return nil, err
		}
		*s.Param.place(m, s.Layer, s.Expert) = Weight{s.Name, t}
	}
	if c.TieWordEmbeddings {
		m.LMHead.Weight = m.Model.EmbedTokens
	}
	return m, nil
}

// Check compares src's headers with the weights that c implies and returns nil or a
// *MismatchError. It reads no data.
func Check(c *config.Config, src Source) error {
	f := FamilyOf(c)
	held := map[string]tensor.Info{}
	for i := range src.Tensors() {
		held[i.Name] = i
	}
	var e MismatchError
	known := map[string]bool{}
	for s := range f.Slots(c) {
		known[s.Name] = true
		got, ok := held[s.Name]
		if !ok {
			e.Missing = append(e.Missing, s)
			continue
		}
		if _, ok := got.DType.Format(); !ok || !slices.Equal(got.Shape, s.Shape) {
			e.Wrong = append(e.Wrong, Wrong{got, s.Shape})
		}
	}
	for s := range expand(f.Ignored, c) {
		known[s.Name] = true
	}
	for i := range src.Tensors() {
		if !known[i.Name] {
			e.Unexpected = append(e.Unexpected, i)
		}
	}
	if len(e.Missing)+len(e.Wrong)+len(e.Unexpected) == 0 {
		return nil
	}
	return &e
}
