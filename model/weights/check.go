package weights

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// MismatchError lists every way in which a source's tensors differ from the
// weights that its config implies: Missing and Wrong in the model's order,
// Unexpected in the source's.
type MismatchError struct {
	Missing    []table.Slot  // weights that no tensor holds
	Wrong      []Wrong       // tensors that cannot be used as the weight they are named after
	Unexpected []tensor.Info // tensors that the table does not know

	nearest map[string]string // known names like those of Unexpected
}

// Wrong is a tensor that has the right name but not the right shape, or a dtype
// that the model does not compute with.
type Wrong struct {
	Got   tensor.Info // the tensor, by the name that the table has for it, or the family's naming
	Want  []int       // the shape that the config implies; nil if Cause is about the shape
	Cause string      // what is wrong beside the shape; empty if it is the shape alone

	Scales *ScalesError // what is wrong with its scales, if that is the cause; else nil
}

// maxFindings is how many findings of a MismatchError its message spells out.
const maxFindings = 20

// Error names the first findings of each kind and counts the rest, on one line.
func (e *MismatchError) Error() string {
	var lines []string
	for _, p := range e.Problems() {
		lines = append(lines, text.Quote(p.Tensor)+": "+p.Cause)
	}
	return fmt.Sprintf("config and tensors do not fit, %d findings: %s", len(lines), text.Some(lines, maxFindings, "; "))
}

// Problems returns a problem per finding.
func (e *MismatchError) Problems() (problems []problem.Problem) {
	add := func(name, cause string) { problems = append(problems, problem.Problem{Tensor: name, Cause: cause}) }
	for _, s := range e.Missing {
		add(s.Name, "missing"+s.Expected())
	}
	for _, w := range e.Wrong {
		add(w.Got.Name, cmp.Or(w.Cause, fmt.Sprintf("shape %v, config says %v", w.Got.Shape, w.Want)))
	}
	for _, i := range e.Unexpected {
		cause := fmt.Sprintf("unexpected, shape %v", i.Shape)
		if near := e.nearest[i.Name]; near != "" {
			cause += "; the nearest known name is " + text.Quote(near)
		}
		if i.DType == tensor.Invalid {
			cause = "unexpected, in a file that was not read"
		}
		add(i.Name, cause)
	}
	return problems
}

// Check compares the tensors with the weights that c implies, see Family.Required, and returns nil or a
// *MismatchError. It reads no data. Of a tensor that was not read it checks the name.
func (set *Set) Check(c *config.Config) error {
	k := &checker{c: c, set: set, known: map[string]bool{}}
	k.found.nearest = map[string]string{}
	f := table.FamilyOf(c)
	for s := range f.Required(c, set.Has) {
		k.check(s)
	}
	for _, x := range set.Misfits {
		k.found.Wrong = append(k.found.Wrong, Wrong{Got: x.Info, Cause: x.Cause})
	}
	for _, w := range set.All() {
		owner := set.byName[w.Owner()]
		besideUnread := w.Part != "" && owner != nil && owner.Form() == tensor.Unread
		if !k.known[w.Name] && !f.Ignores(c, w.Name) && !f.HasUnknown(w.Stored) && !w.ScalesActivations() && !besideUnread {
			k.found.Unexpected = append(k.found.Unexpected, k.named(w))
			k.found.nearest[w.Name] = k.set.Nearest(w.Name)
		}
	}
	if e := &k.found; len(e.Missing)+len(e.Wrong)+len(e.Unexpected) > 0 {
		return e
	}
	return nil
}

// Placeholder says what a tensor without elements in a weight's place is.
const Placeholder = "shape [0], a placeholder: the ranks of DeepSpeed's ZeRO-3 have the numbers, which its " +
	"zero_to_fp32.py gathers, or stage3_gather_16bit_weights_on_model_save"

// checker compares weights with slots.
type checker struct {
	c     *config.Config
	set   *Set
	known map[string]bool
	found MismatchError
}

// check looks for one slot.
func (k *checker) check(s table.Slot) {
	k.known[s.Name] = true
	w := k.set.Find(s.Name)
	switch {
	case w == nil && k.set.InMisfit(s.Name): // said of the misfit
	case w == nil:
		s.Name = k.set.StoredName(k.c, s.Name)
		k.found.Missing = append(k.found.Missing, s)
	case w.Form() == tensor.Unread:
		k.wrong(s, w, fmt.Sprintf("dtype %s, shape %v, with tensors beside it: no stored form that is read has these", w.DType, w.Shape))
	case w.Unread(): // it may have any form
		for _, part := range tensor.Parts() {
			k.known[s.Name+part] = true
		}
	case s.Row.Shape == nil && w.Scaled() && w.Scales == nil:
		k.checkScaled(s, w)
	case s.Row.Shape == nil:
		for _, part := range k.set.partsOf(w) {
			k.known[part] = true
		}
	case slices.Equal(w.Shape, []int{0}): // as ranks under ZeRO-3 see a parameter
		k.wrong(s, w, Placeholder)
	case !slices.Equal(w.Shape, s.Shape):
		k.found.Wrong = append(k.found.Wrong, Wrong{Got: k.named(w), Want: s.Shape})
	case w.Scaled():
		k.checkScaled(s, w)
	case s.Row.Integer():
		if w.DType != tensor.I64 {
			k.wrong(s, w, fmt.Sprintf("dtype %s, I64 is expected", w.DType))
		}
	default:
		if _, ok := w.DType.Format(); !ok {
			k.wrong(s, w, fmt.Sprintf("dtype %s, the model computes with F32, F16, BF16, codes with scales and the blocks of GGUF",
				w.DType))
		} else if _, err := tensor.Size(w.DType, w.Shape); err != nil {
			k.wrong(s, w, err.Error())
		}
	}
}

func (k *checker) wrong(s table.Slot, w *Weight, cause string) {
	k.found.Wrong = append(k.found.Wrong, Wrong{Got: k.named(w), Want: s.Shape, Cause: cause})
}

// named is the weight's header entry under the checkpoint's name for it.
func (k *checker) named(w *Weight) tensor.Info {
	info := w.Info
	info.Name = k.set.StoredName(k.c, info.Name)
	return info
}

// checkScaled looks for the scales of a weight, wherever they are.
func (k *checker) checkScaled(s table.Slot, w *Weight) {
	for _, part := range k.set.partsOf(w) {
		k.known[part] = true
	}
	if cause := w.Disagreement(k.c, s); cause != "" {
		k.wrong(s, w, cause)
	} else if s.Row.LookedUp() {
		k.wrong(s, w, fmt.Sprintf("dtype %s, which only matrix products take", w.DType))
	} else if w.Scales != nil && w.Scales.Unread() {
		return
	} else if err := w.CheckScales(); err != nil {
		k.wrong(s, w, err.Error())
		errors.As(err, &k.found.Wrong[len(k.found.Wrong)-1].Scales)
	}
}

// Disagreement returns what quantization_config says otherwise of a weight of the slot that is codes; "" if it agrees. The
// tensors decide how the weight is read, but engines may go by the config.
func (w *Weight) Disagreement(c *config.Config, s table.Slot) string {
	q, announced, scheme := &c.Quantization, s.Form(c), s.Scheme(c)
	switch {
	case !q.Announced():
		return fmt.Sprintf("dtype %s, but config.json has no quantization_config", w.DType)
	case announced == tensor.Plain && s.Excepted(c):
		return fmt.Sprintf("dtype %s, but %s of quantization_config lists it", w.DType, q.ExceptKey())
	case q.Unread != nil || q.Unclear:
	case scheme.Method == "":
		return fmt.Sprintf("is %s, but no group of quantization_config names it", w.Form().Name)
	case announced == tensor.Plain || announced.Name != w.Form().Name && announced.Method == w.Form().Method:
	case announced.Name != w.Form().Name:
		return fmt.Sprintf("is %s, but quantization_config says %s", w.Form().Name, announced.Name)
	case scheme.Block != [2]int{} && len(w.Shape) == 2 && w.CheckScales() == nil:
		b := announced.Blocks(w.Shape, scheme.Block)
		if block := [2]int{b.BlockRows, b.BlockCols}; block != w.Block {
			return fmt.Sprintf("has a scale for each block of %v, but quantization_config says %v", w.Block, block)
		}
	}
	return ""
}

// Beside says how many of the weights are beside the language model, and which parts they are of, by the
// first words of their names: "4 tensors beside the language model (mm_projector, vision_tower)"; "" for none.
func Beside(c *config.Config, list []*Weight) string {
	n, parts := 0, map[string]bool{}
	for _, w := range list {
		if table.Outside(c, w.Name) {
			part, _, _ := strings.Cut(strings.TrimPrefix(w.Name, "model."), ".")
			n, parts[text.Quote(part)] = n+1, true
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s beside the language model (%s)", text.Plural(n, "tensor"),
		strings.Join(slices.Sorted(maps.Keys(parts)), ", "))
}
