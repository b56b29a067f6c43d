package convert

// How a plan comes about: choose tensors, arrange them, lay them out, name sources.

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// planner builds a plan.
type planner struct {
	view     *View
	o        Options
	filter   *filter
	plan     *Plan
	problems []Problem

	kept    []part
	outputs []output
	groups  map[string]int // fused tensor to its place in outputs
}

// output is a tensor to be written and the parts that it is made of.
type output struct {
	tensor.Info
	parts []part
}

func (p *planner) problem(name, format string, args ...any) {
	p.problems = append(p.problems, Problem{Tensor: name, Cause: fmt.Sprintf(format, args...)})
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

// choose applies the filter and compares what is kept with the table.
func (p *planner) choose() error {
	extra := 0
	for _, n := range p.view.c.Inventory.Notes {
		p.note("%s", n)
	}
	for _, part := range p.view.parts {
		if !p.filter.keeps(part.Name) {
			p.plan.Dropped++
			continue
		}
		if p.view.rank(part.Name) == len(p.view.order) && !p.isScale(part.Name) {
			extra++
		}
		p.kept = append(p.kept, part)
	}
	p.problems = append(p.problems, p.filter.unused()...)
	for name, shape := range p.view.slots() {
		p.checkSlot(name, shape)
	}
	if len(p.kept) == 0 && len(p.problems) == 0 {
		p.problems = append(p.problems, Problem{Cause: "the filters leave no tensor"})
	}
	if extra > 0 {
		p.note("%d tensors beyond what config.json implies are converted too, such as those of MTP layers", extra)
	}
	return nil
}

// checkSlot demands a weight that the config implies.
func (p *planner) checkSlot(name string, shape []int) {
	if !p.filter.keeps(name) {
		return
	}
	i, ok := p.view.index[name]
	if !ok {
		p.problem(name, "missing, shape %v is due", shape)
		return
	}
	if got := p.view.parts[i].Shape; !slices.Equal(got, shape) {
		p.problem(name, "shape %v, config says %v", got, shape)
	}
}

// isScale says whether a tensor holds the scales of an FP8 weight.
func (p *planner) isScale(name string) bool {
	weight, ok := strings.CutSuffix(name, scaleSuffix)
	if !ok {
		return false
	}
	i, ok := p.view.index[weight]
	return ok && p.view.parts[i].DType == tensor.F8E4M3
}

// arrange decides the tensors to be written, in the order of the model.
func (p *planner) arrange() error {
	for _, x := range p.kept {
		if p.o.DType != tensor.Invalid && p.isScale(x.Name) {
			continue // it goes into the weight
		}
		info := x.Info
		info.DType = p.target(x)
		fusedName, expert, position, ok := parseExpert(x.Name)
		if !ok || p.o.Experts == PerExpert || p.o.Experts == KeepExperts && !p.view.fused[fusedName] {
			p.outputs = append(p.outputs, output{info, []part{x}})
			continue
		}
		p.collect(fusedName, expert, position, info.DType, x)
	}
	p.fuseGroups()
	return nil
}

// target is the dtype that a part is written in.
func (p *planner) target(part part) tensor.DType {
	from, to := part.DType, p.o.DType
	switch {
	case to == tensor.Invalid || from == to:
		return from
	case from == tensor.F8E4M3:
		if !p.hasScale(part) {
			return from
		}
		return to
	case strings.HasSuffix(part.Name, ".e_score_correction_bias"):
		return from // it decides the routing; transformers keeps it apart too
	}
	switch from {
	case tensor.F32, tensor.F16, tensor.BF16:
		return to
	case tensor.I64, tensor.I32, tensor.I16, tensor.I8, tensor.U64, tensor.U32, tensor.U16, tensor.U8, tensor.Bool:
		return from
	}
	p.problem(part.Name, "dtype %s cannot be cast to %s", from, to)
	return from
}

// hasScale looks for the scales of an FP8 weight and checks their shape.
func (p *planner) hasScale(part part) bool {
	i, ok := p.view.index[part.Name+scaleSuffix]
	if !ok {
		p.problem(part.Name, "dtype F8_E4M3, but its scales, %s, are missing", part.Name+scaleSuffix)
		return false
	}
	if len(part.Shape) != 2 {
		p.problem(part.Name, "shape %v: only matrices of FP8 are dequantised", part.Shape)
		return false
	}
	scale := p.view.parts[i]
	rows, cols := p.blocks(part).Grid()
	if !slices.Equal(scale.Shape, []int{rows, cols}) {
		p.problem(scale.Name, "shape %v, but a weight of %v has scales of %v", scale.Shape, part.Shape, []int{rows, cols})
		return false
	}
	switch scale.DType {
	case tensor.F32, tensor.F16, tensor.BF16:
		return true
	}
	p.problem(scale.Name, "dtype %s: scales are F32, F16 or BF16", scale.DType)
	return false
}

// blocks says how an FP8 matrix is scaled: as the config says, or as DeepSeek-V3 is.
func (p *planner) blocks(part part) tensor.Blocks {
	block := p.view.Block()
	return tensor.Blocks{Rows: part.Shape[0], Cols: part.Shape[1], BlockRows: block[0], BlockCols: block[1]}
}

// collect puts a part in its place in a fused tensor; the tensor's own place is
// that of its first part.
func (p *planner) collect(fusedName string, expert, position int, to tensor.DType, x part) {
	f, _ := parseFused(fusedName)
	experts := p.view.c.Config.NRoutedExperts
	at, seen := p.groups[fusedName]
	if !seen {
		at = len(p.outputs)
		p.groups[fusedName] = at
		p.outputs = append(p.outputs, output{tensor.Info{Name: fusedName}, make([]part, experts*len(f.parts))})
	}
	if expert >= experts {
		p.problem(x.Name, "cannot be fused: config says %d experts", experts)
		return
	}
	out := &p.outputs[at]
	if out.DType != tensor.Invalid && out.DType != to {
		p.problem(x.Name, "cannot be fused: it would be %s, but others of %s %s", to, fusedName, out.DType)
	}
	out.DType = to
	out.parts[expert*len(f.parts)+position] = x
}

// fuseGroups completes the fused tensors.
func (p *planner) fuseGroups() {
	for i := range p.outputs {
		out := &p.outputs[i]
		if _, ok := p.groups[out.Name]; !ok {
			continue
		}
		f, _ := parseFused(out.Name)
		absent := slices.IndexFunc(out.parts, func(x part) bool { return x.Name == "" })
		if absent >= 0 {
			p.problem(out.Name, "cannot be fused: %s is not among the tensors", f.expertName(absent/len(f.parts), f.parts[absent%len(f.parts)]))
			continue
		}
		shape, err := fusedShape(out.parts, p.view.c.Config.NRoutedExperts)
		if err != nil {
			p.problem(out.Name, "%v", err)
			continue
		}
		out.Shape = shape
		if f.scale {
			p.noteRagged(out)
		}
	}
}

// noteRagged warns of what other readers would make of fused scales.
func (p *planner) noteRagged(out *output) {
	weight := p.view.parts[p.view.index[strings.TrimSuffix(out.parts[0].Name, scaleSuffix)]]
	if len(weight.Shape) == 2 && weight.Shape[0]%p.view.Block()[0] != 0 && strings.HasSuffix(out.Name, "gate_up_proj"+scaleSuffix) {
		p.note("%s: %d rows per projection are not whole blocks of %d: the scales of gate and up stay apart, and a reader that takes both for one matrix misreads them",
			out.Name, weight.Shape[0], p.view.Block()[0])
	}
}

// layout divides the tensors among files and gives each its place.
func (p *planner) layout() error {
	byName := make(map[string]output, len(p.outputs))
	for _, out := range p.outputs {
		p.plan.order = append(p.plan.order, out.Info)
		byName[out.Name] = out
	}
	shards, err := planShards(Output{Tensors: p.plan.order}, p.o.MaxShardBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", safetensors.Quote(p.view.c.Path), err)
	}
	p.plan.shards = shards
	for i, s := range shards {
		p.plan.Files = append(p.plan.Files, PlannedFile{s.name, s.layout.Size(), s.layout.Len(), sum(s.layout.Header())})
		for j := range s.layout.Len() {
			info := s.layout.Info(j)
			t := PlannedTensor{Name: info.Name, DType: info.DType, Shape: info.Shape, File: i, Offset: s.layout.Offset(j)}
			p.segments(&t, byName[info.Name].parts)
			p.plan.Tensors = append(p.plan.Tensors, t)
		}
	}
	return nil
}

// segments fills in where a tensor's elements come from.
func (p *planner) segments(t *PlannedTensor, parts []part) {
	for _, x := range parts {
		s := p.segment(x)
		if t.DType != x.DType && x.DType == tensor.F8E4M3 {
			scale := p.view.parts[p.view.index[x.Name+scaleSuffix]]
			at := p.segment(scale)
			s.Scale = &Scale{at.Tensor, scale.DType, at.File, at.Offset, p.blocks(x)}
		}
		t.Segments = append(t.Segments, s)
	}
	t.Operations = operations(t, p.view.fused)
}

func (p *planner) segment(x part) Segment {
	file := p.view.c.where[x.source]
	_, offset, _ := p.view.c.files[file].Lookup(x.source)
	begin := x.offset * int64(x.DType.Bits()) / 8
	return Segment{Tensor: x.source, DType: x.DType, File: file, Offset: offset + begin, Begin: begin, End: begin + x.Bytes()}
}

// operations names what is done to a tensor.
func operations(t *PlannedTensor, isFused map[string]bool) (ops []string) {
	first := t.Segments[0]
	_, fusedNow := parseFused(t.Name)
	switch {
	case fusedNow && !isFused[first.Tensor]:
		ops = append(ops, opStack)
	case !fusedNow && isFused[first.Tensor]:
		ops = append(ops, opUnstack)
	}
	switch {
	case first.Scale != nil:
		ops = append(ops, opDequantise+" "+t.DType.String())
	case slices.ContainsFunc(t.Segments, func(s Segment) bool { return s.DType != t.DType }):
		ops = append(ops, opCast+" "+t.DType.String())
	}
	if ops == nil {
		ops = []string{opCopy}
	}
	return ops
}

// sources names the files that are read, by what is in them.
func (p *planner) sources() error {
	for i, f := range p.view.c.Inventory.Files {
		header, err := p.view.headerHash(i)
		if err != nil {
			return err
		}
		p.plan.Sources = append(p.plan.Sources, SourceFile{f.Name, f.Size, header})
	}
	return nil
}

// others plans the files without weights.
func (p *planner) others() error {
	raw, err := p.view.c.configText()
	if err != nil {
		return err
	}
	if p.plan.config, err = editDocument(raw, p.configEdits(raw)); err != nil {
		return err
	}
	if _, err := config.Parse(strings.NewReader(string(p.plan.config))); err != nil {
		return fmt.Errorf("%s as it would be written: %w", configName, err)
	}
	if err := p.carry(); err != nil {
		return err
	}
	p.plan.Others = append(p.plan.Others, made(configName, p.plan.config))
	if len(p.plan.shards) > 1 {
		p.plan.Others = append(p.plan.Others, made(indexName, indexOf(p.plan.order, p.plan.shards)))
	}
	return nil
}

func made(name string, data []byte) OtherFile {
	return OtherFile{Name: name, Size: int64(len(data)), SHA256: sum(data), data: data}
}

// configEdits are the changes that keep config.json true.
func (p *planner) configEdits(raw []byte) (edits []edit) {
	members, _ := documentMembers(raw)
	values := map[string]string{}
	for _, m := range members {
		values[m.key] = string(raw[m.value:m.end])
	}
	set := func(key, value string) {
		if old, ok := values[key]; ok && old != value {
			edits = append(edits, edit{key, []byte(value)})
		}
	}
	if p.o.DType != tensor.Invalid {
		name := map[tensor.DType]string{tensor.F32: `"float32"`, tensor.F16: `"float16"`, tensor.BF16: `"bfloat16"`}[p.o.DType]
		if values["torch_dtype"] == "" && values["dtype"] == "" {
			edits = append(edits, edit{"torch_dtype", []byte(name)})
		}
		set("torch_dtype", name)
		set("dtype", name)
		if _, ok := values["quantization_config"]; ok {
			edits = append(edits, edit{"quantization_config", nil})
		}
	}
	if n, ok := p.o.Layers.prefix(); ok && n < p.view.c.Config.NumHiddenLayers {
		set("num_hidden_layers", fmt.Sprint(n))
		set("num_nextn_predict_layers", "0")
	} else if len(p.o.Layers) > 0 {
		p.note("the layers kept are not the first ones: they keep their numbers and config.json its number of layers, so the output is a part of a model")
	}
	return edits
}
