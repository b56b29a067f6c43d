package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// HashReport names the values of a checkpoint's weights. A name does not depend on files,
// their format and order, on whether experts are fused, on a leading "model.", nor on a
// dtype that holds the same numbers:
//
//   - The name of a tensor is that of a line of ASCII, "F32" and the dimensions with spaces
//     between, then LF: "F32 1408 2048\n"; and of the elements as little-endian float32, row by row.
//     F16 and BF16 become F32, FP8 is multiplied with its scales and rounded to F32; each NaN
//     is 0x7fc00000; -0 is not 0. Scales have no name of their own.
//   - A tensor of another dtype has that in the line, "I64 17\n", and its bytes as they are stored.
//   - The name of a module is that of a line for each tensor in it: the tensor's name without the
//     module's and its dot, a space, the tensor's hash, LF; ordered by the bytes of the names. The
//     model is the module of all tensors, with their whole names, per expert and with "model.".
//
// A name is "blake3:" and the 64 hexadecimal digits of a BLAKE3 hash of 256 bits.
type HashReport struct {
	Path    string         `json:"path"`    // of the checkpoint, as the user gave it
	Model   *string        `json:"model"`   // of all tensors; null if not all are selected
	Modules []hashedModule `json:"modules"` // those all of whose tensors are selected, in the order of their first tensors
	Tensors []hashedTensor `json:"tensors"` // the selected ones, in the order of the model

	by inspect.Grouping // what the sheet shows before the model's hash: ByTensor, ByModule, or ByModel for nothing
}

// hashedModule is a module: every part of a tensor's name up to a dot names one, unless it has
// that tensor alone.
type hashedModule struct {
	Name    string `json:"name"`    // "model.layers.3.mlp.experts.17"
	Tensors int    `json:"tensors"` // number of tensors in it
	Hash    string `json:"hash"`    // see HashReport
}

// hashedTensor is a tensor; of fused experts each has its own.
type hashedTensor struct {
	Name  string       `json:"name"`  // the table's
	DType tensor.DType `json:"dtype"` // as it is stored
	Shape []int        `json:"shape"` // outermost first
	Hash  string       `json:"hash"`  // see HashReport
}

// Hash reads the selected weights and names their values. by says which hashes the sheet of the report shows. What
// cannot be read, and FP8 weights without usable scales, are an error that names all of them.
func Hash(ctx context.Context, w inspect.Weights, s inspect.Selection, by inspect.Grouping) (*HashReport, error) {
	list, err := w.Pick(s)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, (*weights.Weight).IsScales)
	if len(list) == 0 {
		return nil, errors.New("nothing to hash: no weight is selected; scales have no hash of their own")
	}
	r := &HashReport{Path: w.Path, Tensors: make([]hashedTensor, len(list)), by: by}
	reading, order, errs := w.Reading(ctx), make([]int, len(list)), make([]error, len(list))
	for i, x := range list {
		order[i] = i
		reading.Expect(x.Bytes())
	}
	// the largest first: each is hashed in one piece, and none is left for one worker at the end
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(list[b].Bytes(), list[a].Bytes()) })
	for _, i := range order {
		reading.Go(func() error {
			x := list[i]
			sum, err := hashWeight(&w, reading, x)
			r.Tensors[i], errs[i] = hashedTensor{x.Name, x.DType, x.Shape, sum}, x.Failed(err)
			return nil
		})
	}
	if err := errors.Join(reading.Wait(), errors.Join(errs...)); err != nil {
		return nil, err
	}
	var names []string
	for _, x := range w.List {
		if !x.IsScales() {
			names = append(names, x.Name)
		}
	}
	r.Modules, r.Model = modulesOf(names, r.Tensors)
	return r, nil
}

// hashWeight names the values of a weight.
func hashWeight(w *inspect.Weights, r *weights.Reading, x *weights.Weight) (string, error) {
	sum, dtype := digest.New(), x.DType
	_, isNumber := dtype.Format()
	if isNumber {
		if err := x.CheckScales(); err != nil {
			return "", err
		}
		dtype = tensor.F32
	}
	fmt.Fprint(sum, dtype)
	for _, n := range x.Shape {
		fmt.Fprint(sum, " ", n)
	}
	fmt.Fprintln(sum)
	if !isNumber {
		for tile, err := range r.Bytes(w.Reader, x, 0, int64(x.Len())) {
			if err != nil {
				return "", err
			}
			sum.Write(tile)
		}
		return sum.Name(), nil
	}
	var canonical [pieceElements]float32
	for values, err := range r.Numbers(w.Reader, x, 0, int64(x.Len())) {
		if err != nil {
			return "", err
		}
		for piece := range slices.Chunk(values, pieceElements) {
			if largest := tensor.ExtremesOf(piece).Largest; largest != largest { // there are NaN
				piece = canonical[:copy(canonical[:], piece)]
				for i, v := range piece {
					if v != v {
						piece[i] = math.Float32frombits(canonicalNaN)
					}
				}
			}
			sum.Write(tensor.Float32Bytes(piece))
		}
	}
	return sum.Name(), nil
}

// canonicalNaN is what every NaN is hashed as.
const canonicalNaN = 0x7fc00000

// pieceElements is how many numbers are looked at and hashed at a time: they stay in the nearest cache.
const pieceElements = 2048

// modulesOf names the modules with a hash for each of their tensors, and the model if every tensor has one. all are the
// names of the checkpoint's tensors.
func modulesOf(all []string, hashed []hashedTensor) (modules []hashedModule, model *string) {
	size := map[string]int{} // of modules, in tensors
	for _, name := range all {
		for m := range enclosing(name) {
			size[m]++
		}
	}
	inside := map[string][]hashedTensor{}
	order := []string{}
	for _, t := range hashed {
		for m := range enclosing(t.Name) {
			if inside[m] == nil {
				order = append(order, m)
			}
			inside[m] = append(inside[m], t)
		}
	}
	modules = []hashedModule{}
	for _, m := range order {
		if len(inside[m]) < size[m] || m != "" && size[m] == 1 { // the hash of the only tensor says as much
			continue
		}
		slices.SortFunc(inside[m], func(a, b hashedTensor) int { return strings.Compare(a.Name, b.Name) })
		sum := digest.New()
		for _, t := range inside[m] {
			name := t.Name
			if m != "" {
				name = name[len(m)+1:]
			}
			fmt.Fprintf(sum, "%s %s\n", name, t.Hash)
		}
		if name := sum.Name(); m == "" {
			model = &name
		} else {
			modules = append(modules, hashedModule{m, size[m], name})
		}
	}
	return modules, model
}

// enclosing yields the modules that a tensor is in, the model, "", first.
func enclosing(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if !yield("") {
			return
		}
		for i := range len(name) {
			if name[i] == '.' && !yield(name[:i]) {
				return
			}
		}
	}
}

// Sheet is a row per name of the level.
func (r *HashReport) Sheet() *text.Sheet {
	s := text.NewSheet("hash", "name")
	switch r.by {
	case inspect.ByTensor:
		for _, t := range r.Tensors {
			s.Row(t.Hash, text.Foreign(t.Name))
		}
	case inspect.ByModule:
		for _, m := range r.Modules {
			s.Row(m.Hash, text.Foreign(m.Name))
		}
	}
	if r.Model != nil {
		s.Row(*r.Model, "(model)")
	}
	return s
}

// WriteText writes the sheet.
func (r *HashReport) WriteText(w io.Writer) error { return r.Sheet().WriteAs(w, text.AsTable) }
