package gguf

// What the files of a checkpoint hold, in HuggingFace's terms.

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// assembler finds the tensors of the table in files.
type assembler struct {
	files  []*File
	where  map[string]int // stored tensor to file
	config *config.Config
	arch   string
	used   map[string]bool // stored tensors that are a part of something
	found  []format.Assembled
	twice  []string // stored tensors whose weights lie in pieces too
	wrong  []problem.Problem
}

// assemble is Dialect.Assemble.
func assemble(opened []format.File) (*format.Assembly, []problem.Problem) {
	a := assembler{where: map[string]int{}, used: map[string]bool{}}
	for _, f := range opened {
		a.files = append(a.files, f.(*File))
	}
	a.shards()
	var infos []tensor.Info
	for i, f := range a.files {
		for _, e := range f.Entries {
			infos = append(infos, e.Info)
			if first, twice := a.where[e.Info.Name]; twice {
				a.fail(i, e.Info.Name, "is in %s too", text.Quote(a.files[first].Path()))
				continue
			}
			a.where[e.Info.Name] = i
		}
	}
	arch, present := a.files[0].values[architectureKey].one.(string)
	if !present {
		a.fail(0, "", "key %s is missing, or no string", architectureKey)
		return nil, a.wrong
	}
	if architectureNamed(arch) == nil {
		var names []string
		for _, known := range architectures {
			names = append(names, known.name)
		}
		a.fail(0, "", "%s is %s: this program reads %s", architectureKey, text.Quote(arch), strings.Join(names, ", "))
		return nil, a.wrong
	}
	r := keyReader{File: a.files[0], arch: arch}
	document, c := r.config(table.TorchName(most(infos)), a.has)
	if a.wrong = append(a.wrong, r.wrong...); a.wrong != nil {
		return nil, a.wrong
	}
	a.config, a.arch = c, arch
	a.tensors()
	a.widened()
	slices.SortStableFunc(a.found, func(x, y format.Assembled) int { return x.Parts[0].File - y.Parts[0].File })
	decoded, notes := 0, []string(nil)
	for i := range a.found {
		if slices.ContainsFunc(a.found[i].Parts, func(p format.Part) bool { return p.Decode.Blocked() || p.Decode.Casts() }) {
			decoded++
		}
	}
	if decoded > 0 {
		notes = append(notes, text.Plural(decoded, "weight")+
			", stored in parts of several dtypes or quantised in another order, are F32 here, and larger than in the file")
	}
	if len(a.twice) > 0 {
		notes = append(notes, fmt.Sprintf("%s whole and in pieces, the first %s: what llama.cpp takes is read, the other not",
			text.Plural(len(a.twice), "weight")+" stored", text.Quote(a.twice[0])))
	}
	return &format.Assembly{Config: document, Tensors: a.found, Notes: notes}, a.wrong
}

func (a *assembler) fail(file int, name, cause string, args ...any) {
	a.wrong = append(a.wrong, problem.Problem{File: filepath.Base(a.files[file].Path()), Tensor: name,
		Cause: fmt.Sprintf(cause, args...)})
}

// shards compares each file's number and count with the set of files.
func (a *assembler) shards() {
	total := 0
	for i, f := range a.files {
		total += len(f.Entries)
		count, present := f.values["split.count"].one.(uint64)
		no, numbered := f.values["split.no"].one.(uint64)
		switch {
		case !present && len(a.files) == 1:
		case !present || !numbered:
			a.fail(i, "", "keys split.no and split.count, which say its place among %d files, are missing", len(a.files))
		case count != uint64(len(a.files)):
			a.fail(i, "", "split.count is %d, but the set has %s", count, text.Plural(len(a.files), "file"))
		case no != uint64(i):
			a.fail(i, "", "split.no is %d, but by its name it is %d", no, i)
		}
	}
	for i, f := range a.files {
		v, present := f.values["split.tensors.count"]
		n, _ := v.one.(int64)
		if u, unsigned := v.one.(uint64); unsigned {
			n = int64(u)
		}
		if present && n != int64(total) {
			a.fail(i, "", "split.tensors.count is %v, but the files have %d", v.one, total)
		}
	}
}

// stored returns a stored tensor and its file.
func (a *assembler) stored(name string) (info tensor.Info, file int, ok bool) {
	if file, ok = a.where[name]; !ok {
		return info, 0, false
	}
	info, _, _ = a.files[file].Lookup(name)
	a.used[name] = true
	return info, file, true
}

// tensors finds every weight of the table, and adds other stored tensors under their own
// names.
func (a *assembler) tensors() {
	f := table.FamilyOf(a.config)
	for s := range f.Slots(a.config) {
		a.slot(s)
	}
	for s := range f.MTPSlots(a.config) {
		a.slot(s)
	}
	for i, f := range a.files {
		for _, e := range f.Entries {
			if !a.used[e.Info.Name] {
				a.found = append(a.found, format.Assembled{Info: e.Info,
					Parts: []format.Part{{File: i, Tensor: e.Info.Name, N: int64(e.Info.Len())}}})
			}
		}
	}
}

// fusions are the tensors of llama.cpp's --fuse-qkv and --fuse-gate-up-exps, by a part of the name of one of their
// weights: rows before that weight's, and of all.
var fusions = []struct {
	part, fused string
	rows        func(c *config.Config) (before, all int)
}{
	{".attn_q.", ".attn_qkv.", func(c *config.Config) (int, int) { q, kv := headRows(c); return 0, q + 2*kv }},
	{".attn_k.", ".attn_qkv.", func(c *config.Config) (int, int) { q, kv := headRows(c); return q, q + 2*kv }},
	{".attn_v.", ".attn_qkv.", func(c *config.Config) (int, int) { q, kv := headRows(c); return q + kv, q + 2*kv }},
	{".ffn_gate_exps.", ".ffn_gate_up_exps.", func(c *config.Config) (int, int) { n := c.MoE.MoEIntermediateSize; return 0, 2 * n }},
	{".ffn_up_exps.", ".ffn_gate_up_exps.", func(c *config.Config) (int, int) { n := c.MoE.MoEIntermediateSize; return n, 2 * n }},
}

// headRows returns the rows of q_proj, and of k_proj or v_proj, of plain attention.
func headRows(c *config.Config) (q, kv int) {
	return c.Attention.NumAttentionHeads * c.ValueHeadDim(), c.Attention.NumKeyValueHeads * c.ValueHeadDim()
}

// has reports whether a tensor is stored, alone or in a fused one.
func (a *assembler) has(name string) bool {
	_, ok := a.where[name]
	for _, f := range fusions {
		if _, fused := a.where[strings.Replace(name, f.part, f.fused, 1)]; fused {
			ok = true
		}
	}
	return ok
}

// cutOut returns a weight, or the piece of one, of that name and shape that is a run of rows of a fused tensor, and that
// tensor; fits is false if the tensor has another shape.
func (a *assembler) cutOut(s table.Slot, name string, shape []int) (part format.Part, info tensor.Info, fits, ok bool) {
	for _, f := range fusions {
		info, file, ok := a.stored(strings.Replace(name, f.part, f.fused, 1))
		if !strings.Contains(name, f.part) || !ok {
			continue
		}
		before, all := f.rows(a.config)
		part := format.Part{File: file, Tensor: info.Name, N: int64(s.Info(info.DType).Len())}
		row, want := part.N/int64(shape[0]), append([]int{all}, shape[1:]...)
		if part.First = int64(before) * row; s.Expert >= 0 {
			part.First += int64(s.Expert) * int64(all) * row
			want = append([]int{a.config.MoE.NRoutedExperts}, want...)
		}
		return part, info, slices.Equal(info.Shape, want) || s.Expert <= 0 && a.fits(info, file, want), true
	}
	return part, info, false, false
}

// slot finds one weight of the table. A missing weight is left out. Pieces of several dtypes, and pieces cut across
// blocks, are decoded to F32. Of a weight that is stored whole and in pieces that is read which llama.cpp takes.
func (a *assembler) slot(s table.Slot) {
	g := s.Row.GGUF
	if info, file, ok := a.stored(s.InLayer(g.Name)); ok {
		twice := len(g.Pieces) > 0
		for _, p := range g.Pieces {
			_, has := a.where[s.InLayer(p.Name)]
			twice = twice && has
		}
		_, split := a.files[0].values[a.arch+"."+keyMLA] // from these pieces llama.cpp takes kv_b_proj then
		if twice {
			a.twice = append(a.twice, s.InLayer(g.Name))
		}
		if !twice || !split {
			a.whole(s, info, file)
			for _, p := range g.Pieces {
				a.used[s.InLayer(p.Name)] = true
			}
			return
		}
	} else if part, info, fits, ok := a.cutOut(s, s.InLayer(g.Name), s.Shape); ok {
		if fits {
			a.found = append(a.found, format.Assembled{Info: s.Info(info.DType), Parts: []format.Part{part}})
		}
		return
	}
	orders := make([]table.Order, len(g.Pieces))
	pieces := make([]format.Part, len(g.Pieces))
	for i := range g.Pieces {
		name := s.InLayer(g.Pieces[i].Name)
		info, file, ok := a.stored(name)
		orders[i] = g.Pieces[i].Order(a.config, s.Shape)
		pieces[i] = format.Part{File: file, Tensor: info.Name, N: int64(info.Len())}
		if fits := ok && a.fits(info, file, orders[i].Shape); !ok {
			pieces[i], info, ok, _ = a.cutOut(s, name, orders[i].Shape)
		} else {
			ok = fits
		}
		if !ok {
			return
		}
		pieces[i].Decode = info.DType
	}
	if len(pieces) > 0 {
		dtype := pieces[0].Decode
		for i := range pieces {
			shape, strides := orders[i].Shape, orders[i].View.Stride
			cut := pieces[i].Decode.Blocked() && len(shape) > 1 && strides[len(strides)-1] != 1
			if cut || pieces[i].Decode != dtype {
				dtype = tensor.F32
			}
		}
		for i := range pieces {
			if pieces[i].Decode == dtype {
				pieces[i].Decode = tensor.Invalid
			}
		}
		a.found = append(a.found, format.Assembled{Info: s.Info(dtype), Parts: putTogether(pieces, orders)})
	}
}

// whole adds a weight that is a stored tensor or, for an expert, a slice of one.
func (a *assembler) whole(s table.Slot, info tensor.Info, file int) {
	part := format.Part{File: file, Tensor: info.Name, N: int64(s.Info(info.DType).Len())}
	want := s.Shape
	if s.Expert >= 0 {
		part.First = int64(s.Expert) * part.N
		want = append([]int{a.config.MoE.NRoutedExperts}, want...)
	}
	dtype := info.DType
	if s.Row.Integer() && dtype == tensor.I32 {
		dtype, part.Decode = tensor.I64, dtype
	}
	if s.Expert > 0 && !slices.Equal(info.Shape, want) {
		return // reported for the first
	}
	if a.fits(info, file, want) {
		a.found = append(a.found, format.Assembled{Info: s.Info(dtype), Parts: []format.Part{part}})
	}
}

// fits compares a shape with that which the keys say. Files that llama.cpp itself wrote lack outermost dimensions of 1.
func (a *assembler) fits(info tensor.Info, file int, want []int) bool {
	if !slices.Equal(withoutOnes(info.Shape), withoutOnes(want)) {
		a.fail(file, info.Name, "shape %v, the keys say %v, outermost first", info.Shape, want)
		return false
	}
	return true
}

// withoutOnes returns a shape without its outermost dimensions of 1, but the innermost.
func withoutOnes(shape []int) []int {
	for len(shape) > 1 && shape[0] == 1 {
		shape = shape[1:]
	}
	return shape
}

// putTogether inverts the orders of the pieces of a weight: of several, each has its share of
// every place along the first axis.
func putTogether(pieces []format.Part, orders []table.Order) (parts []format.Part) {
	if len(pieces) == 1 {
		pieces[0].View = orders[0].View.Inverse()
		return pieces
	}
	_, places := orders[0].View.Inner()
	for place := range places {
		for i, p := range pieces {
			inner, _ := orders[i].View.Inner()
			p.N = inner.Len()
			p.First = place * p.N
			view, runs := inner.Inverse(), 0
			for range view.Runs(0, view.Len()) {
				runs++
			}
			if p.View = view; runs == 1 { // in stored order
				p.View = nil
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// widened finds the tensors that our writer had to widen.
func (a *assembler) widened() {
	before := map[string]tensor.DType{}
	for _, key := range a.files[0].keys {
		name, ours := strings.CutPrefix(key, widenedKey)
		d, err := tensor.ParseDType(name)
		if !ours || err != nil {
			continue
		}
		for _, x := range a.files[0].values[key].many {
			if stored, ok := x.(string); ok {
				before[stored] = d
			}
		}
	}
	for i := range a.found {
		x := &a.found[i]
		if d := before[x.Parts[0].Tensor]; x.DType == tensor.F32 && d.Casts() && x.Whole() {
			x.Was = d
		}
	}
}
