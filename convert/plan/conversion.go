package plan

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/operation"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Conversion plans the conversion of src. It reads no weight. Everything that keeps the
// conversion from being right is in the one *problem.Error that it returns.
func Conversion(src *checkpoint.Checkpoint, o Options) (*Plan, error) {
	c, err := newConversion(src, o)
	if err != nil {
		return nil, err
	}
	changes := c.format.Dialect != nil || o.DType != tensor.Invalid || o.Mixture != "" || o.Names != "" ||
		o.Adapter != nil || o.Experts == FusedExperts || o.Experts == PerExpert || len(o.Layers) > 0 || o.MTP || o.NoMTP || o.Prune.some()
	if (changes || src.Config.Quantization.Unread != nil) && src.Config.Computable() != nil { // more than files of other sizes and fewer tensors
		return nil, problem.In(src.Path, problem.Of(src.ConfigFile(), src.Config.Computable())...)
	}
	chosen := c.choose()
	if err := c.refused(nil); err != nil {
		return nil, err
	}
	doc, err := c.rewrite(chosen)
	if err := c.refused(err); err != nil {
		return nil, err
	}
	outputs, derived := c.dialect.arrange(c, chosen, doc.config)
	if err := c.refused(nil); err != nil {
		return nil, err
	}
	described, err := c.dialect.describe(c, chosen, doc.config, outputs)
	if err := c.refused(err); err != nil {
		return nil, err
	}
	p := &Plan{Format: c.format, Options: c.o.recorded(c.format, c.kept), Missing: doc.missing, File: o.File,
		described: described, Vocabulary: described.Vocabulary, source: src.Memory()}
	for i, f := range src.Inventory.Files {
		identity, err := src.Identity(i)
		if err != nil {
			return nil, err
		}
		p.Sources = append(p.Sources, Source{f.Name, f.Size, identity})
	}
	if o.Adapter != nil {
		p.source += o.Adapter.Memory()
		for i, f := range o.Adapter.Files {
			p.Sources = append(p.Sources, Source{f.Name, f.Size, o.Adapter.Hashes[i]})
		}
	}
	if err := c.layOut(p, outputs); err != nil {
		return nil, err
	}
	p.Others, p.Left, err = c.dialect.companions(c, doc, p)
	if err := c.refused(err); err != nil {
		return nil, err
	}
	c.noteKept(chosen)
	p.Dropped, p.Notes = chosen.dropped+derived, c.notes
	p.seal()
	return p, nil
}

func newConversion(src *checkpoint.Checkpoint, o Options) (*conversion, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	f, err := checkpoint.Written(o.Format)
	if err != nil {
		return nil, err
	}
	f = src.Rewritten(f)
	if o.Mixture != "" && (f.Dialect == nil || !slices.Contains(f.Dialect.Types, o.Mixture)) {
		return nil, fmt.Errorf("type %s: %s does not have it, but --to gguf, or a DST that ends in .gguf, does",
			text.Quote(o.Mixture), f.Name)
	}
	if o.Name != "" && f.Dialect == nil {
		return nil, fmt.Errorf("name %s: a checkpoint in %s has no name of its own", text.Quote(o.Name), f.Name)
	}
	if o.File != "" && (checkpoint.FormatOf(o.File) != f || checkpoint.IsShard(o.File)) {
		return nil, fmt.Errorf("%s: a whole %s checkpoint cannot have this name", text.Quote(o.File), f.Name)
	}
	if f.Dialect == nil && (o.Pre != "" || o.NoVocab) {
		return nil, fmt.Errorf("%s has no vocabulary in its files: --pre and --no-vocab are for another format", f.Name)
	}
	if o.Imatrix != nil && !strings.Contains(o.Mixture, "_k") {
		return nil, fmt.Errorf("type %s: only the mixtures of types K use an importance matrix", text.Quote(o.kind()))
	}
	if o.Adapter != nil && (f.Dialect != nil || o.encodes()) {
		return nil, fmt.Errorf("an adapter is merged into safetensors in F32, F16 or BF16: convert the merged checkpoint to %s", o.kind())
	}
	c := &conversion{src: src, o: o, format: f, dialect: huggingFace{}, set: weights.New(src.Config, src),
		findings: &findings{notes: []string{}}}
	for _, w := range c.set.WrongShapes(weights.Mapped(src)) {
		c.problem(w.Got.Name, "%s", w.Cause)
	}
	if f.Dialect != nil {
		c.dialect = foreign{f.Dialect, src.FilesIn(f)}
		c.o.NoMTP = !o.MTP && (o.NoMTP || !src.ConfigInside() && !f.Dialect.Predicts(src.Config))
	}
	return c, nil
}

// layOut divides the outputs among files and fills in their segments.
func (c *conversion) layOut(p *Plan, outputs []output) error {
	infos, n := make([]tensor.Info, len(outputs)), 0
	for i := range outputs {
		infos[i] = outputs[i].Info
		n += len(outputs[i].parts)
	}
	sources, err := p.layOut(infos, shardBytes(c.o.MaxShardBytes, c.format))
	if err != nil {
		return fmt.Errorf("%s: %w", text.Quote(c.src.Path), err)
	}
	a := assembler{src: c.src, adapter: c.o.Adapter, changes: c.changes, kept: c.kept, powersOfTwo: c.powersOfTwo, segments: make([]Segment, 0, n),
		operations: map[elementwise]operation.Operation{}}
	for i := range p.Tensors {
		if err := a.assemble(&p.Tensors[i], &outputs[sources[i]]); err != nil {
			return fmt.Errorf("%s: tensor %s: %w", text.Quote(c.src.Path), text.Quote(p.Tensors[i].Name), err)
		}
	}
	if !c.o.encodes() {
		return nil
	}
	tensors := make([]*Tensor, len(outputs))
	for i := range p.Tensors {
		tensors[sources[i]] = &p.Tensors[i]
	}
	for i, t := range tensors {
		if outputs[i].scales { // they are behind their codes
			t.Codes = tensors[i-1]
		}
	}
	return nil
}
