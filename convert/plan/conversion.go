package plan

import (
	"fmt"
	"slices"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/operation"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Conversion plans the conversion of src. It reads no weight. Everything that keeps the
// conversion from being right is in the one *checkpoint.Error that it returns.
func Conversion(src *checkpoint.Checkpoint, o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	f, err := checkpoint.Written(o.Format)
	if err != nil {
		return nil, err
	}
	if o.Mixture != "" && (f.Dialect == nil || !slices.Contains(f.Dialect.Types, o.Mixture)) {
		return nil, fmt.Errorf("type %s: %s does not have it", text.Quote(o.Mixture), f.Name)
	}
	o.NoMTP = o.NoMTP || f.Dialect != nil && !o.MTP
	c := conversion{src: src, o: o, filter: newFilter(src.Config, o), set: weights.New(src.Config, src), groups: map[string]fusedGroup{},
		plan: &Plan{Format: f, Options: o.recorded(f), Left: []string{}, Notes: []string{}, Missing: []Missing{}}}
	c.choose()
	steps := []func() error{c.arrange, c.layout, c.sources, c.others}
	if f.Dialect != nil {
		steps = []func() error{c.rewrite, c.arrangeIn, c.describe, c.layout, c.sources, c.leave}
	}
	for _, step := range steps {
		if c.problems == nil {
			err = step()
		}
		if c.problems != nil {
			return nil, &checkpoint.Error{Path: src.Path, Problems: c.problems}
		}
		if err != nil {
			return nil, err
		}
	}
	c.plan.seal()
	return c.plan, nil
}

// conversion builds the plan of one.
type conversion struct {
	src      *checkpoint.Checkpoint
	o        Options
	filter   *filter
	set      *weights.Set // all of src's
	plan     *Plan
	problems []checkpoint.Problem

	kept    []*weights.Weight     // what the filter keeps, in the order of the model
	outputs []tensor.Info         // what is written, in the order of the model
	parts   [][]*weights.Weight   // what each output is made of
	groups  map[string]fusedGroup // by the name of the fused tensor

	written *config.Config          // config.json as it is in the output
	text    []byte                  // that, as it is written
	orders  map[int]format.Arranged // of outputs that have a weight's elements in another order
}

func (c *conversion) problem(name, cause string, args ...any) {
	c.problems = append(c.problems, checkpoint.Problem{Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

func (c *conversion) note(what string, args ...any) {
	c.plan.Notes = append(c.plan.Notes, fmt.Sprintf(what, args...))
}

// layout divides the tensors among files and gives each its place.
func (c *conversion) layout() error {
	given, err := c.plan.layOut(c.outputs, shardBytes(c.o.MaxShardBytes, c.plan.Format))
	if err != nil {
		return fmt.Errorf("%s: %w", text.Quote(c.src.Path), err)
	}
	n := 0
	for _, parts := range c.parts {
		n += len(parts)
	}
	c.outputs = nil // the plan has them
	a := assembler{conversion: c, segments: make([]Segment, 0, n), operations: map[elementwise]operation.Operation{}}
	for i := range c.plan.Tensors {
		t := &c.plan.Tensors[i]
		if err := a.assemble(t, c.parts[given[i]], c.orders[int(given[i])]); err != nil {
			return fmt.Errorf("%s: tensor %s: %w", text.Quote(c.src.Path), text.Quote(t.Name), err)
		}
	}
	return nil
}

// sources names the files that are read, by what is in them.
func (c *conversion) sources() error {
	c.plan.source = c.src.Memory()
	for i, f := range c.src.Inventory.Files {
		identity, err := c.src.Identity(i)
		if err != nil {
			return err
		}
		c.plan.Sources = append(c.plan.Sources, Source{f.Name, f.Size, identity})
	}
	return nil
}

// noteRagged warns of what other readers would make of fused scales.
func (c *conversion) noteRagged(fused string, part *weights.Weight) {
	f, _ := part.Fused()
	w := c.set.Find(part.Owner())
	if part.Part != "" && len(f.Roles) > 1 && w != nil && len(w.Shape) == 2 && w.Shape[0]%w.Block[0] != 0 {
		c.note("%s: %d rows per projection are not whole blocks of %d: the scales of gate and up stay apart, and a reader that takes both for one matrix misreads them",
			text.Quote(fused), w.Shape[0], w.Block[0])
	}
}
