package diagnose

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/mat"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// A change of low rank, such as a LoRA that was merged on one side, read off a failed product: the residual has few
// directions, though the inputs have many.

const (
	// mostGrams is the largest number of rows whose directions are looked for.
	mostGrams = 192
	// ranksOfProduct is how many times as many directions as the difference the product itself has at least, above
	// the same share of its size: else the inputs, not the change, have few.
	ranksOfProduct = 3
)

// leastAlong is the least share, squared, of a column of down_proj along the residual of a neuron, and of an input
// channel: columns and channels of trained models are not that much alike.
const leastAlong = 0.98

// rankMistakes is a change of the failed product's weight that has a low rank, and the same of several products of the
// layer that failed.
func rankMistakes(f *Failure) []mistake {
	g, directions := f.lowRank()
	return slices.Concat(g.rankMistakes(directions, ""), f.severalRanks())
}

// lowRank returns the directions of the residual, and f. If a product of float32 numbers has none, it looks for those that
// stand out from the roundings of a weight that is stored in 16 bits, which the failure that it returns then allows for.
func (f *Failure) lowRank() (*Failure, [][]float64) {
	directions := f.directions()
	if directions != nil || !f.isProduct() || f.Pack.DType != tensor.F32 {
		return f, directions
	}
	g := *f
	if w := f.Set.Find(f.module() + ".weight"); w != nil && (w.DType == tensor.BF16 || w.DType == tensor.F16) {
		g.stored = w.DType
	}
	return &g, g.directions()
}

// roundingWords says that roundings of weights to d are a part of the difference.
func roundingWords(d tensor.DType) string {
	if d == tensor.Invalid {
		return ""
	}
	return fmt.Sprintf(", and by no more than roundings to %s", d)
}

// severalRanks is a change of low rank in each of several products of the layer that failed, such as a LoRA that was
// merged on one side, or twice.
func (f *Failure) severalRanks() []mistake {
	failed := map[string]bool{} // stages
	for _, c := range f.Checks {
		if c.Layer() == f.Layer && f.Layer >= 0 && c.Verdict == report.Fail {
			failed[c.Tensor] = true
		}
	}
	ranks, stored := map[string]int{}, tensor.Invalid // by weight
	return []mistake{{id: "low-rank", kinds: []string{f.kind()}, guess: true, undo: func(x *Trial) string {
		clear(ranks)
		attention, products := x.Projections(), 0
		for _, stage := range attention {
			if failed[stage] {
				products++
			}
		}
		for _, w := range f.Set.All() {
			if w.Layer == f.Layer && failed[stageOfProduct(w.Name)] && w.Module() != table.Attention {
				products++
			}
		}
		if products < 2 {
			return ""
		}
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.linear = func(in *bounds.Value, l *model.Linear) *bounds.Value {
				y, stage := a.Linear(in, l), attention[l]
				if stage == "" {
					stage = stageOfProduct(l.Weight.Name)
				}
				if !failed[stage] {
					return y
				}
				if g := f.product(stage, l.Weight.Name, in, y); g != nil {
					if g, directions := g.lowRank(); directions != nil {
						ranks[l.Weight.Name], stored = len(directions), max(stored, g.stored)
						y = a.Move(model.OrderColumns(y.Shape, indices(y.Width())), y)
						g.moveAlong(y, directions, g.along)
					}
				}
				return y
			}
		})
		return "several weights and the reference's differ by matrices of low rank, such as a LoRA"
	}, more: func(context.Context) (string, error) {
		var words []string
		for _, name := range slices.Sorted(maps.Keys(ranks)) {
			or := ""
			if mlp, is := strings.CutSuffix(name, string(table.DownProj)+".weight"); is && !f.Pack.Has(mlp+string(table.GateProj)+".output") {
				or = " (or by a few rows of gate_proj or up_proj)"
			}
			words = append(words, fmt.Sprintf("%s by rank %d%s", name, ranks[name], or))
		}
		const most = 10
		return roundingWords(stored) + ": " + text.Some(words, most, ", "), nil
	}}}
}

// stageOfProduct is the stage that the product with a weight outside attention gives, if its module is the last one of
// the stage's.
func stageOfProduct(weight string) string {
	module := strings.TrimSuffix(weight, ".weight")
	if mlp, is := strings.CutSuffix(module, "."+string(table.DownProj)); is {
		return mlp + ".output"
	} else if strings.HasSuffix(module, ".mlp.gate") {
		return module + ".logits"
	}
	return module + ".output"
}

// product returns the failure of another stage of the layer, which is the product y of in with a weight; nil if the pack
// has another shape of it.
func (f *Failure) product(stage, weight string, in, y *bounds.Value) *Failure {
	want, err := f.Pack.Float32s(stage)
	if err != nil || y.Rows() == 0 || len(want) != len(y.Values) {
		return nil
	}
	g := *f
	g.Name, g.Weights, g.Rows = stage, []string{weight}, indices(y.Rows())
	rows := 1
	for _, n := range f.Shape[:len(f.Shape)-1] {
		rows *= n
	}
	if rows == y.Rows() {
		g.Rows = f.Rows // of the same tokens
	}
	gather := func(values []float32, width int) []float32 {
		rows := make([]float32, 0, len(g.Rows)*width)
		for _, row := range g.Rows {
			rows = append(rows, values[row*width:(row+1)*width]...)
		}
		return rows
	}
	n := y.Width()
	g.Want, g.Unrounded = gather(want, n), gather(y.Values, n)
	g.Got = &model.Activation{Shape: []int{len(g.Rows), n}, Values: slices.Clone(g.Unrounded), DType: y.DType}
	for i, v := range g.Got.Values {
		g.Got.Values[i] = tensor.Rounded(v, y.DType)
	}
	g.Input = &model.Activation{Shape: []int{len(g.Rows), in.Width()}, Values: gather(in.Values, in.Width())}
	g.Deviations = nil
	for _, row := range g.Rows {
		for i := row * n; i < (row+1)*n; i++ {
			g.Deviations = append(g.Deviations, bounds.Unit*math.Sqrt(y.Variance(i)))
		}
	}
	return &g
}

// rankMistakes is the same for given directions of the residual. or names further changes that give these directions.
func (f *Failure) rankMistakes(directions [][]float64, or string) []mistake {
	if directions == nil {
		return nil
	}
	name := f.module() + ".weight"
	id, along := "low-rank", f.along
	words := fmt.Sprintf("%s and the reference's differ by a matrix of rank %d, such as a LoRA or a few columns", name,
		len(directions))
	if w := f.Set.Find(name); w != nil && w.Scaled() {
		words += ", or scales or zeros of a few groups"
	}
	words += or + roundingWords(f.stored)
	if c, by := f.channel(directions); c >= 0 {
		id = "weight-column"
		words = fmt.Sprintf("%s differs from the reference's in column %d, the input channel%s%s", name, c, or, roundingWords(f.stored))
		along = func(r int, _ []float64) float64 { return by * float64(f.Input.Row(r)[c]) }
	}
	return []mistake{{id: id, kinds: []string{f.kind()}, guess: true, undo: func(x *Trial) string {
		f.undoAlong(x, name, directions, along)
		return words
	}}}
}

// channel returns the input channel that the residual follows, and the factor between them. It returns -1 if there is
// no such channel, or several, or if the residual has several directions.
func (f *Failure) channel(directions [][]float64) (found int, by float64) {
	if len(directions) > 1 {
		return -1, 0
	}
	found = -1
	along := make([]float64, f.Got.Rows())
	for r := range along {
		along[r] = f.along(r, directions[0])
	}
	for c := range f.Input.Width() {
		var s fit
		for r, v := range along {
			s.add(float64(f.Input.Row(r)[c]), v)
		}
		if bounds.Sq(s.yg) > leastAlong*s.yy*s.gg {
			if found >= 0 {
				return -1, 0
			}
			found, by = c, s.factor()
		}
	}
	return found, by
}

// directions returns orthonormal rows that span the residual, within the limits; nil if these are many, or if only few
// columns differ.
func (f *Failure) directions() [][]float64 {
	if !f.isProduct() || !f.isFinite() {
		return nil
	}
	n := f.Got.Width()
	var rows []int // one of each set of rows alike
	var seen [][]float32
	for r := range min(f.Got.Rows(), 4*mostGrams) {
		in := f.Input.Row(r)
		if len(rows) < mostGrams && !slices.ContainsFunc(seen, func(other []float32) bool { return slices.Equal(in, other) }) {
			rows, seen = append(rows, r), append(seen, in)
		}
	}
	right := 0
	for c := range n {
		if f.isColumn(c, c, 1) {
			right++
		}
	}
	if right > n/2 || len(rows) < 2*ranksOfProduct {
		return nil
	}
	at := func(t, c int) int { return rows[t]*n + c }
	left := func(t, c int) float64 { return f.residual(at(t, c)) }
	product := func(t, c int) float64 { return float64(f.Unrounded[at(t, c)]) }
	noise := 0.0
	for t, r := range rows {
		noise += float64(n) * bounds.Sq(f.cast(f.Unrounded[r*n:(r+1)*n]))
		for c := range n {
			i := at(t, c)
			noise += bounds.Sq(f.Deviations[i]) + bounds.Sq(bounds.PrecisionOf(f.Got.DType).Ulp(float64(f.Want[i])))/12
		}
	}
	return spanOf(len(rows), n, left, product, noise)
}

// spanOf returns orthonormal rows that span the difference D [rows, n] from a matrix P. noise is the sum of squares that
// rounding adds to D. The result is nil if D has many directions, or if P has few.
func spanOf(rows, n int, difference, product func(t, c int) float64, noise float64) [][]float64 {
	gramD, gramP := gram(rows, n, difference), gram(rows, n, product)
	if mat.Trace(gramD) <= 4*noise {
		return nil
	}
	rank, vectors := ranks(gramD, 1.5*noise)
	control, _ := ranks(gramP, 1.5*noise*mat.Trace(gramP)/mat.Trace(gramD))
	if rank == 0 || rank*ranksOfProduct > min(control, n) {
		return nil
	}
	directions := make([][]float64, rank)
	for k := range directions { // uᵀD, normalised
		direction, squares := make([]float64, n), 0.0
		for c := range direction {
			for t := range rows {
				direction[c] += float64(vectors.At(t, k) * difference(t, c))
			}
			squares += bounds.Sq(direction[c])
		}
		for c := range direction {
			direction[c] /= math.Sqrt(squares)
		}
		directions[k] = direction
	}
	return directions
}

// cast is the standard deviation that casting a weight to a pack's 16-bit dtype, or to stored, gives elements of a row of
// a product.
func (f *Failure) cast(row []float32) float64 {
	to := f.Pack.DType
	if to == tensor.F32 {
		to = f.stored
	}
	if f.Got.DType == tensor.F32 && f.Pack.DType == tensor.F32 && to == tensor.Invalid {
		return 0
	}
	squares := 0.0
	for _, v := range row {
		squares += bounds.Sq(float64(v))
	}
	return bounds.PrecisionOf(to).Ulp(1) * math.Sqrt(squares/float64(len(row))/12)
}

// gram is A·Aᵀ of a matrix A [rows, n]. A few columns are in memory at a time.
func gram(rows, n int, at func(t, c int) float64) *mat.SymDense {
	const columns = 256
	sum, part := mat.NewSymDense(rows, nil), mat.NewSymDense(rows, nil)
	for first := 0; first < n; first += columns {
		a := mat.NewDense(rows, min(columns, n-first), nil)
		a.Apply(func(t, c int, _ float64) float64 { return at(t, first+c) }, a)
		part.SymOuterK(1, a)
		sum.AddSym(sum, part)
	}
	return sum
}

// ranks returns how many directions leave at most a sum of squares of a matrix A, and A's left singular vectors,
// largest values first. gram is A·Aᵀ.
func ranks(gram *mat.SymDense, most float64) (rank int, left *mat.Dense) {
	n := gram.SymmetricDim()
	var eigen mat.EigenSym
	if !eigen.Factorize(gram, true) {
		return n, nil
	}
	values := eigen.Values(nil) // ascending
	var vectors mat.Dense
	eigen.VectorsTo(&vectors)
	left = mat.NewDense(n, n, nil)
	rest := 0.0
	for k, v := range values {
		left.SetCol(n-1-k, mat.Col(nil, k, &vectors))
		if rest += max(0, v); rest <= most {
			rank = k + 1
		}
	}
	return n - rank, left
}

// undoAlong changes the product with a weight along a few directions: in each row by as much as along says.
func (f *Failure) undoAlong(x *Trial, name string, directions [][]float64, along func(r int, direction []float64) float64) {
	x.changeProduct(name, func(_, y *bounds.Value) { f.moveAlong(y, directions, along) })
}

// moveAlong changes the product y.
func (f *Failure) moveAlong(y *bounds.Value, directions [][]float64, along func(r int, direction []float64) float64) {
	n := y.Width()
	for i, row := range f.Rows {
		cast := sharedRoundings * bounds.Sq(f.cast(f.Unrounded[i*n:(i+1)*n])/bounds.Unit)
		for c := range n {
			y.Set(row*n+c, float64(y.Values[row*n+c]), y.Variance(row*n+c)+cast)
		}
		for _, d := range directions {
			by := along(i, d)
			for c, v := range d {
				k := row*n + c
				y.Set(k, float64(y.Values[k])+float64(by*v), y.Variance(k))
			}
		}
	}
}

// along is how far row r of the golden is from ours in a direction.
func (f *Failure) along(r int, direction []float64) (sum float64) {
	n := f.Got.Width()
	for c, v := range direction {
		sum += float64(v * f.residual(r*n+c))
	}
	return sum
}
