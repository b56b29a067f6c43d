package plan

// What the stages of a conversion share: its input, their findings, and what each hands to the next.

import (
	"fmt"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/operation"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

// conversion is the input of a plan and the findings of its stages.
type conversion struct {
	src     *checkpoint.Checkpoint
	o       Options
	format  *format.Format // of the output
	dialect dialect
	set     *weights.Set // all of src's
	// kept is set by choose: the routed experts of the layers that are converted; nil keeps all under their
	// numbers. Weights, outputs and findings have the source's numbers until an output gets its name.
	kept table.Kept
	// changes is set by choose: what the adapter changes, by the table's names of the weights.
	changes map[string]*change
	// powersOfTwo is set by rewrite: scales that are written are powers of two.
	powersOfTwo bool
	*findings
}

// findings are appended to by every stage.
type findings struct {
	problems []problem.Problem // what keeps the conversion from being right
	notes    []string          // for the user
}

func (f *findings) problem(name, cause string, args ...any) {
	f.problems = append(f.problems, problem.Problem{Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// problem names the tensor as the source does.
func (c *conversion) problem(name, cause string, args ...any) {
	c.findings.problem(c.set.StoredName(c.src.Config, name), cause, args...)
}

func (f *findings) note(what string, args ...any) {
	f.notes = append(f.notes, fmt.Sprintf(what, args...))
}

// refused returns all problems found so far, or else err, why a stage could not be completed.
func (c *conversion) refused(err error) error {
	if c.problems == nil {
		return err
	}
	return problem.In(c.src.Path, c.problems...)
}

// dialect is how a format arranges its tensors, keys and files.
type dialect interface {
	// arrange decides the tensors to be written, in the order of the model. written is the
	// output's config. derived counts weights that are not written, as nothing reads them.
	arrange(c *conversion, chosen selection, written *config.Config) (outputs []output, derived int)
	// describe encodes the weight files' content beside their tensors.
	describe(c *conversion, chosen selection, written *config.Config, outputs []output) (format.Described, error)
	// companions plans the files without weights, and lists the source's files that are neither
	// read nor copied.
	companions(c *conversion, doc document, p *Plan) (others []Other, left []string, err error)
}

// selection is the weights that a conversion keeps.
type selection struct {
	filter  *filter
	set     *weights.Set
	kept    []*weights.Weight // in the order of the model
	dropped int               // how many are not kept
}

// has reports whether a weight of the source is kept.
func (s selection) has(name string) bool {
	w := s.set.Find(name)
	return w != nil && s.filter.keeps(w.Owner(), w.Place)
}

// renamed gives the output its name, and the shape of the rows that are kept.
func (o *output) renamed(kept table.Kept) {
	if len(o.parts) == 1 {
		o.Shape = kept.Shape(o.parts[0].Place, o.Shape)
	}
	o.Name = kept.Smaller(o.Name)
}

// document is the written config.json, as text and parsed.
type document struct {
	text    []byte
	config  *config.Config
	missing []Missing // weights that it implies and that are not written
}

// output is a tensor to be written, and the weights that it consists of, in order.
type output struct {
	tensor.Info
	parts      []*weights.Weight
	order      *format.Arranged      // if it has the elements of one weight in another order
	importance *operation.Importance // of its columns; nil for none
	// stored is the source's tensor with these elements in this order, which is read instead of the
	// parts; nil for a source of another format.
	stored *tensor.Info
	// scales says that it has the scales of the one part, which becomes codes in another output.
	scales bool
}

// dtypes lists the dtypes of the tensors that are read.
func (o *output) dtypes() (types []tensor.DType) {
	if o.stored != nil {
		return []tensor.DType{o.stored.DType}
	}
	for _, w := range o.parts {
		types = append(types, w.DType)
	}
	return types
}
