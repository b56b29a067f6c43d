package plan

// Outputs in a format with names, orders and a config of its own.

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/operation"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// foreign is a format with names, orders and a config of its own.
type foreign struct {
	*format.Dialect
	files []format.File // the source's, if they have this format; nil for others
}

// stored returns the source's tensor of that name and shape, nil if the source has another format.
func (f foreign) stored(name string, shape []int) *tensor.Info {
	for _, file := range f.files {
		if info, _, ok := file.Lookup(name); ok && slices.Equal(info.Shape, shape) {
			return &info
		}
	}
	return nil
}

// arrange decides the tensors to be written as the format has them.
func (f foreign) arrange(c *conversion, chosen selection, written *config.Config) (outputs []output, derived int) {
	var infos []tensor.Info
	var others []output // tensors of the source that the table does not know
	for i, w := range chosen.kept {
		if stored := f.stored(w.Stored, w.Shape); stored != nil {
			others = append(others, output{Info: *stored, stored: stored, parts: chosen.kept[i : i+1]})
		} else if !w.IsScales() {
			out := output{Info: w.Info, parts: chosen.kept[i : i+1]}
			out.renamed(c.kept)
			infos = append(infos, out.Info)
		}
	}
	arranged, wrong := f.Arrange(written, infos, c.o.kind())
	c.problems = append(c.problems, wrong...)
	if wrong != nil {
		return nil, 0
	}
	if c.o.Experts == FusedExperts {
		c.problem("", "%s has the experts of a layer in three tensors: %s is not for it", c.format.Name, "--experts fused")
	}
	for i := range arranged {
		x := &arranged[i]
		out := output{parts: make([]*weights.Weight, len(x.Weights))}
		for k, name := range x.Weights {
			out.parts[k] = c.set.Find(c.kept.Larger(name))
		}
		dtype := tensor.Invalid
		if !c.renumbers(out.parts[0]) {
			out.stored = f.stored(x.Name, x.Shape)
		}
		if out.stored != nil {
			dtype = c.retyped(x, out.stored)
		} else {
			dtype = c.targetIn(x, out.parts)
		}
		if x.View != nil && out.stored == nil {
			out.order = x
		}
		out.Info = tensor.Info{Name: x.Name, DType: dtype, Shape: x.Shape}
		outputs = append(outputs, out)
	}
	if others != nil {
		c.note("%s, the first is %s, are not in the table of %s: they are copied", text.Plural(len(others), "tensor"),
			text.Quote(others[0].Name), c.src.Config.ModelType)
	}
	c.refuseRequantising(outputs)
	if c.o.Imatrix != nil {
		c.weigh(outputs)
	}
	return append(outputs, others...), c.noteDerived(chosen.kept, infos, arranged)
}

// noteDerived names the tensors that are not written because nothing reads them by the table:
// a tied head, or angles of RoPE; and those beside the language model. It returns their number.
func (c *conversion) noteDerived(chosen []*weights.Weight, infos []tensor.Info, arranged []format.Arranged) (n int) {
	written := make(map[string]bool, len(infos))
	for _, x := range arranged {
		for _, name := range x.Weights {
			written[name] = true
		}
	}
	first, outside := "", 0
	for _, info := range infos {
		if table.Outside(c.src.Config, info.Name) {
			outside++
		} else if !written[info.Name] {
			n, first = n+1, cmp.Or(first, info.Name)
		}
	}
	if n > 0 {
		c.note("%s, the first is %s: not written, as models derive or tie them", text.Plural(n, "tensor"), text.Quote(first))
	}
	if outside > 0 {
		c.note("%s: not written, for %s holds the language model alone", weights.Beside(c.src.Config, chosen), c.format.Name)
	}
	return n + outside
}

// targetIn returns the dtype of a written tensor. All its parts must be convertible to it.
func (c *conversion) targetIn(x *format.Arranged, parts []*weights.Weight) (to tensor.DType) {
	for i, w := range parts {
		d := w.DType
		if err := w.CheckScales(); err != nil {
			c.problem(w.Name, "%v", err)
		} else if x.DType.Integer() && d != tensor.I64 {
			c.problem(w.Name, "dtype %s, I64 is expected", d)
		} else if !d.Casts() && !d.Blocked() && !d.Scaled() && !x.DType.Integer() {
			c.problem(w.Name, "dtype %s cannot be written to a %s file", d, c.format.Name)
		}
		switch {
		case x.DType != tensor.Invalid:
			d = x.DType
		case c.o.DType != tensor.Invalid:
			d = c.o.DType
		case d.Scaled(): // which the format does not have, but perhaps blocks of the same numbers
			d = tensor.BF16
			if w.Scales != nil && x.View == nil {
				d = cmp.Or(operation.RepackTo(w.DType, w.Scaling()), d)
			}
		}
		if i > 0 && d != to {
			c.problem(w.Name, "would be %s, but others of %s %s: ask for one dtype", d, text.Quote(x.Name), to)
		}
		to = d
	}
	return to
}

// retyped returns the dtype of a written tensor that the source stores.
func (c *conversion) retyped(x *format.Arranged, stored *tensor.Info) tensor.DType {
	d := stored.DType
	switch {
	case c.o.kind() == keepTypes, d == x.DType:
		return d
	case !d.Casts() && !d.Blocked():
		c.problem(stored.Name, "dtype %s cannot be changed", d)
	}
	if x.DType != tensor.Invalid {
		return x.DType
	}
	return c.o.DType
}

// refuseRequantising makes weights that are quantised already and would get other blocks one
// problem.
func (c *conversion) refuseRequantising(outputs []output) {
	var types []string
	for i := range outputs {
		for _, d := range outputs[i].dtypes() {
			changes := d != outputs[i].DType || outputs[i].order != nil
			if d.Blocked() && outputs[i].DType.Blocked() && changes && !slices.Contains(types, d.String()) {
				types = append(types, d.String())
			}
		}
	}
	if types != nil {
		slices.Sort(types)
		c.problem("", "its weights are quantised already (%s), and are not quantised a second time, to other types or in "+
			"another order; convert the F16, BF16 or F32 checkpoint that it was made from", strings.Join(types, ", "))
	}
}

// describe encodes the files' content beside their tensors in the format.
func (f foreign) describe(c *conversion, chosen selection, written *config.Config, outputs []output) (format.Described,
	error) {
	d := format.Description{Config: written, Name: modelName(c.src), Named: c.o.Name, Type: c.o.kind(),
		Source: f.files, Before: c.src.Config, Was: make([]tensor.DType, len(outputs)), Pre: c.o.Pre, NoVocab: c.o.NoVocab}
	if c.o.Imatrix != nil {
		d.Imatrix = &c.o.Imatrix.Imatrix.Imatrix
	}
	if !c.src.Alone {
		d.Open = c.src.OpenOther
		d.List = func(dir string) (names []string, err error) { // of a directory beside the weights, which may be missing
			if names, err = c.src.Source.List(dir); errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
			return names, err
		}
	}
	noted := map[string]bool{}
	for i, out := range outputs {
		d.Tensors = append(d.Tensors, out.Info)
		w, to := out.parts[0], out.DType
		if to == tensor.F32 && (w.DType == tensor.BF16 || w.DType == tensor.F16) {
			d.Was[i] = w.DType
		}
		if key := w.Form().Name + to.String(); c.o.kind() != keepTypes || !w.Scaled() || noted[key] {
			continue
		} else if noted[key] = true; to.Blocked() {
			c.note("%s with its scales becomes blocks of %s, of the same numbers", w.Form().Name, to)
		} else if w.Scales != nil && w.Scaling().Scales == tensor.F8E8M0 {
			c.note("%s has no %s: it becomes %s", c.format.Name, w.Form().Name, to) // a power of two rounds nothing
		} else {
			c.note("%s has no %s: it becomes %s, rounded", c.format.Name, w.Form().Name, to)
		}
	}
	described, err := f.Describe(d)
	c.notes = append(c.notes, described.Notes...)
	var bad *problem.Error
	if errors.As(err, &bad) {
		c.problems = append(c.problems, problem.Of(filepath.Base(bad.Path), err)...)
	}
	return described, err
}

// modelName is the name of a model without a name of its own: its repository in the hub's
// cache, its directory, or its file without the extension.
func modelName(src *checkpoint.Checkpoint) string {
	if !src.Source.OnDisk() && !src.Alone {
		name, _, _ := strings.Cut(path.Base(src.Dir), "@") // the commit
		return name
	}
	dir := src.Dir
	if src.Alone {
		dir = src.Path
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	name := filepath.Base(dir)
	if src.Alone {
		return strings.TrimSuffix(name, filepath.Ext(name))
	}
	return cmp.Or(checkpoint.Repository(dir), name)
}

// companions lists the files that are neither copied nor read whole: the format has everything
// in its own files, so no file is copied.
func (f foreign) companions(c *conversion, _ document, _ *Plan) (others []Other, left []string, err error) {
	names, err := c.src.Source.List("")
	if err != nil || c.src.Alone {
		return nil, []string{}, err
	}
	left = []string{}
	for _, name := range names {
		if !c.isReplaced(name) && (f.files != nil || !f.Consumes(name)) {
			left = append(left, name)
		}
	}
	return nil, left, nil
}
