package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Sums of experts' outputs, read off the numbers: a token's golden is fitted to the outputs of its experts. The factors
// say which experts the reference added, with which weights.

// fittedRows is the most tokens that are fitted.
const fittedRows = 32

// fitted is a token of a failed routed sum whose golden is a sum of its experts' outputs.
type fitted struct {
	token   int       // in the stage
	factors []float64 // of its experts' outputs, in the order of topk_idx
	errors  []float64 // standard deviations of the factors
}

// is reports whether the factor of an expert's output is a number, as near as can be told.
func (t *fitted) is(slot int, number float64) bool {
	return math.Abs(t.factors[slot]-number) <= float64(leastCertain*t.errors[slot])+float64(1e-4*math.Abs(number))
}

// fittedTokens fits wrong tokens of a failed routed sum, evenly spread. It returns nil if one of them is no sum of its
// experts' outputs.
func (f *Failure) fittedTokens() (tokens []fitted) {
	of := bounds.Marked(f.Beyond)
	if f.Kind != pack.ExpertsOutput || f.Idx == nil || len(of) == 0 || !f.isFinite() {
		return nil
	}
	x := f.mlpInput()
	idx, _ := f.routing()
	if x == nil || idx == nil {
		return nil
	}
	k, n := len(f.Idx)/f.Got.Rows(), f.Got.Width()
	plain := model.NewPlain(model.Options{DType: tensor.F32})
	defer plain.Close(nil)
	experts := f.Model.Layer(f.Layer).MoE.Experts
	for i := range min(len(of), fittedRows) {
		row := of[i*len(of)/min(len(of), fittedRows)]
		token := f.Rows[row]
		in := rowsAt(x, []int{token})
		in.DType = tensor.F32
		var outputs [][]float64
		for _, e := range idx[token*k:][:k] {
			m := &experts[e]
			y := plain.Linear(f.inExpert(plain, m, in), &m.DownProj).Values
			wide := make([]float64, n)
			for c, v := range y {
				wide[c] = float64(v)
			}
			outputs = append(outputs, wide)
		}
		golden := make([]float64, n)
		for c := range golden {
			golden[c] = float64(f.Want[row*n+c]) - f.beside(row*n+c)
		}
		factors, errors, left := leastSquares(outputs, golden)
		limit := 0.0 // the rounding of the golden, and of the sum
		for c := range golden {
			limit = max(limit, f.tolerance(row*n+c, row*n+c))
		}
		if factors == nil || left > limit {
			return nil
		}
		tokens = append(tokens, fitted{token, factors, errors})
	}
	return tokens
}

// leastSquares returns the factors of some vectors whose sum is nearest to another, their standard deviations, and the
// root mean square of what is left; nil if the vectors are not independent.
func leastSquares(vectors [][]float64, of []float64) (factors, errors []float64, left float64) {
	k := len(vectors)
	rows := make([][]float64, k) // normal equations, beside the unit matrix
	product := func(a, b []float64) (sum float64) {
		for i, v := range a {
			sum += float64(v * b[i])
		}
		return sum
	}
	for i := range rows {
		rows[i] = make([]float64, 2*k+1)
		for j := range k {
			rows[i][j] = product(vectors[i], vectors[j])
		}
		rows[i][k], rows[i][k+1+i] = product(vectors[i], of), 1
	}
	for i := range k {
		pivot := rows[i][i]
		if !(pivot > 1e-9*product(vectors[i], vectors[i])) {
			return nil, nil, 0
		}
		for j := range rows[i] {
			rows[i][j] /= pivot
		}
		for other := range k {
			if by := rows[other][i]; other != i {
				for j := range rows[other] {
					rows[other][j] -= float64(by * rows[i][j])
				}
			}
		}
	}
	for c, v := range of {
		for i, x := range vectors {
			v -= float64(rows[i][k] * x[c])
		}
		left += bounds.Sq(v)
	}
	for i := range k {
		factors = append(factors, rows[i][k])
		errors = append(errors, math.Sqrt(left/float64(max(1, len(of)-k))*rows[i][k+1+i]))
	}
	return factors, errors, math.Sqrt(left / float64(len(of)))
}

// sumMistake is a routed sum whose experts have other weights: of the pair in each place of topk_idx.
func sumMistake(id, words string, weight func(slot int) float64) mistake {
	return mistake{id: id, kinds: []string{pack.ExpertsOutput}, unless: id, undo: func(x *Trial) string {
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.combine = func(weights *bounds.Value, parts []model.Part[*bounds.Value], order config.RoutedSum) *bounds.Value {
				other := a.Move(model.OrderColumns(weights.Shape, indices(weights.Width())), weights)
				for slot := range other.Values {
					other.Values[slot] = float32(weight(slot))
				}
				return a.Combine(other, parts, order)
			}
		})
		return words
	}}
}

// summedMistakes are experts that are missing from the routed sum or in it twice, and weights that belong to others.
func summedMistakes(f *Failure) (list []mistake) {
	tokens := f.fittedTokens()
	if tokens == nil {
		return nil
	}
	idx, weights := f.routing()
	k := len(tokens[0].factors)
	all := func(of func(slot int) float64) bool { // whether these weights are those of all tokens
		return !slices.ContainsFunc(tokens, func(t fitted) bool {
			return slices.ContainsFunc(indices(k), func(i int) bool { return !t.is(i, of(t.token*k+i)) })
		})
	}
	for _, times := range []float64{0, 2} {
		if words, changed := f.changedPairs(tokens, times); changed != nil {
			id, how := "experts-missing", "the reference's routed sums lack "
			if times > 0 {
				id, how = "experts-repeated", "the reference's routed sums have twice "
			}
			list = append(list, sumMistake(id, how+words, func(slot int) float64 {
				if changed(slot) {
					return times * float64(weights[slot])
				}
				return float64(weights[slot])
			}))
		}
	}
	total := func(slot int) (sum float64) {
		for _, w := range weights[slot/k*k:][:k] {
			sum += float64(w)
		}
		return sum
	}
	scale := f.Model.Config.Router.RoutedScalingFactor
	for _, rule := range []struct {
		id, words string
		of        func(slot int) float64
	}{
		{"experts-unweighted", "the reference adds up the experts' outputs without their weights",
			func(int) float64 { return 1 }},
		{"experts-unweighted", "the reference takes the mean of the experts' outputs, without their weights",
			func(int) float64 { return 1 / float64(k) }},
		{"sum-normalised", "the reference divides the experts' weights by their sum, once more",
			func(slot int) float64 { return float64(weights[slot]) / total(slot) }},
		{"sum-normalised", "the reference divides the experts' weights by their sum, once more, and multiplies them with " +
			"routed_scaling_factor", func(slot int) float64 { return float64(weights[slot]) / total(slot) * scale }},
		{"weights-of-others", "the reference gives the experts in ascending order the weights in the order of topk_idx",
			func(slot int) float64 {
				row := idx[slot/k*k:][:k]
				at, _ := slices.BinarySearch(slices.Sorted(slices.Values(row)), row[slot%k])
				return float64(weights[slot/k*k+at])
			}},
		{"weights-of-others", "the reference gives the experts in the order of topk_idx the weights in descending order",
			func(slot int) float64 {
				row := slices.Clone(weights[slot/k*k:][:k])
				slices.SortFunc(row, func(a, b float32) int { return cmp.Compare(b, a) })
				return float64(row[slot%k])
			}},
		{"weights-of-others", "the reference gives the experts in the order of topk_idx the weights in ascending order",
			func(slot int) float64 { return float64(slices.Sorted(slices.Values(weights[slot/k*k:][:k]))[slot%k]) }},
		{"weights-of-others", "the reference gives the experts the weights in the opposite order of topk_idx",
			func(slot int) float64 { return float64(weights[slot/k*k+k-1-slot%k]) }},
		{"weights-of-others", "the reference gives the experts of a token the weights of the token before it",
			func(slot int) float64 { return float64(weights[max(slot-k, slot%k)]) }},
		{"weights-of-others", "the reference gives the experts of a token the weights of the token behind it",
			func(slot int) float64 { return float64(weights[min(slot+k, len(weights)-k+slot%k)]) }},
		{"weights-of-others", "the reference gives the experts of all tokens the weights of the first one",
			func(slot int) float64 { return float64(weights[slot%k]) }},
	} {
		if all(rule.of) {
			list = append(list, sumMistake(rule.id, rule.words, rule.of))
		}
	}
	return list
}

// changedPairs describes the pairs of a token and an expert that have a multiple of their weights in the golden, and
// returns which they are; nil if a wrong token has a factor that is neither that nor the weight, or if nothing tells the
// pairs from others.
func (f *Failure) changedPairs(tokens []fitted, times float64) (words string, changed func(slot int) bool) {
	idx, weights := f.routing()
	k := len(tokens[0].factors)
	order, seen := make([]int, len(idx)), map[int]int{} // of each pair among its expert's
	for slot, e := range idx {
		order[slot], seen[e] = seen[e], seen[e]+1
	}
	var pairs, others []int
	for _, t := range tokens {
		for i := range k {
			slot := t.token*k + i
			w := float64(weights[slot])
			switch kept, of := t.is(i, w), t.is(i, times*w); {
			case kept && !of:
				others = append(others, slot)
			case of && !kept:
				pairs = append(pairs, slot)
			case !of:
				return "", nil
			}
		}
	}
	for row, token := range f.Rows {
		for slot := token * k; row < len(f.Beyond) && !f.Beyond[row] && slot < min((token+1)*k, len(idx)); slot++ {
			others = append(others, slot)
		}
	}
	if len(pairs) == 0 || len(others) == 0 && times != 0 { // a factor of the sum
		return "", nil
	}
	if len(others) == 0 {
		return "the outputs of all experts", func(int) bool { return true }
	}
	for _, by := range []struct {
		of    func(slot int) int // what the pairs have in common, and no other pair has
		words func(values []int) string
	}{
		{func(slot int) int { return idx[slot] }, func(experts []int) string {
			return text.Noun(len(experts), "expert") + " " + text.Ranges(experts)
		}},
		{func(slot int) int { return slot % k }, func(places []int) string {
			return "the experts in place " + text.Ranges(places) + " of topk_idx"
		}},
	} {
		values, rest := map[int]bool{}, map[int]bool{}
		for _, slot := range others {
			rest[by.of(slot)] = true
		}
		for _, slot := range pairs {
			values[by.of(slot)] = true
		}
		if !slices.ContainsFunc(pairs, func(slot int) bool { return rest[by.of(slot)] }) {
			return by.words(slices.Sorted(maps.Keys(values))), func(slot int) bool { return !rest[by.of(slot)] }
		}
	}
	first, last := order[pairs[0]], -1
	for _, slot := range pairs {
		first = min(first, order[slot])
	}
	for _, slot := range others {
		last = max(last, order[slot])
	}
	if first > last {
		return fmt.Sprintf("an expert's tokens behind its first %d, as with a capacity", first),
			func(slot int) bool { return order[slot] >= first }
	}
	if len(pairs) > bounds.Few {
		return "", nil
	}
	var said []string
	for _, slot := range pairs {
		said = append(said, fmt.Sprintf("expert %d of token %d", idx[slot], slot/k))
	}
	return strings.Join(said, ", "), func(slot int) bool { return slices.Contains(pairs, slot) }
}

// sharedMistakes are factors of the routed sum and of the shared experts in a layer's output, which has both once.
func sharedMistakes(f *Failure) []mistake {
	if f.Kind != "mlp.output" || f.Layer < 0 || f.Model.Layer(f.Layer).MoE == nil || !f.isFinite() {
		return nil
	}
	var parts [2][]float64 // routed and shared, in got's rows
	n := f.Got.Width()
	golden := make([]float64, len(f.Want))
	for i, kind := range []string{pack.ExpertsOutput, pack.SharedOutput} {
		values, err := f.Pack.Float32s(pack.StageOf(f.Layer, kind))
		if err != nil || len(values) < (slices.Max(f.Rows)+1)*n {
			return nil
		}
		for _, row := range f.Rows {
			for _, v := range values[row*n : (row+1)*n] {
				parts[i] = append(parts[i], float64(v))
			}
		}
	}
	for i, v := range f.Want {
		golden[i] = float64(v)
	}
	factors, errors, _ := leastSquares(parts[:], golden)
	if factors == nil {
		return nil
	}
	scale := f.Model.Config.Router.RoutedScalingFactor
	words := []string{"the routed sum", "shared experts"}
	var said []string
	for i, factor := range factors {
		known := 0.0
		for _, number := range []struct {
			is    float64
			words string
		}{
			{1, ""}, {0, "leaves out " + words[i]}, {2, "adds " + words[i] + " twice"},
			{scale, "multiplies " + words[i] + " with routed_scaling_factor"},
			{1 / scale, "divides " + words[i] + " by routed_scaling_factor"},
			{scale * scale, "multiplies " + words[i] + " with routed_scaling_factor, twice"},
		} {
			if math.Abs(factor-number.is) <= float64(leastCertain*errors[i])+float64(1e-5*number.is) {
				known, said = 1, append(said, number.words)
				factors[i] = number.is
				break
			}
		}
		if known == 0 {
			said = append(said, fmt.Sprintf("multiplies %s with %.4g", words[i], factor))
		}
	}
	if said = slices.DeleteFunc(said, func(s string) bool { return s == "" }); said == nil {
		return nil
	}
	routed, _ := f.Pack.Float32s(pack.StageOf(f.Layer, pack.ExpertsOutput))
	shared, _ := f.Pack.Float32s(pack.StageOf(f.Layer, pack.SharedOutput))
	return []mistake{{id: "shared-experts", kinds: []string{f.kind()}, undo: func(x *Trial) string {
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.add = func(y, z *bounds.Value) *bounds.Value {
				if slices.Equal(y.Values, routed) && slices.Equal(z.Values, shared) {
					y, z = a.Scale(y, float32(factors[0])), a.Scale(z, float32(factors[1]))
				}
				return a.Add(y, z)
			}
		})
		return "the reference " + strings.Join(said, ", and ")
	}}}
}
