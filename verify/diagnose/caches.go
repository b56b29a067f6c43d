package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Caches of latents: what latent attention reads was rounded to fewer bits on the way. The failed product of kv_b_proj
// tells the step of E4M3.

// latentMistakes are caches of latents that an engine does not declare.
func latentMistakes(f *Failure) (list []mistake) {
	product := f.Kind == pack.InAttention(table.KVBProj)
	if f.How == nil || f.Layer < 0 || !f.Model.Config.LatentAttention() || !product && !slices.Contains(attendStages, f.Kind) {
		return nil
	}
	words := []string{"bf16", "f16", "q8_0", "fp8", "fp8-token", "fp8-1x128", "fp8-tensor"}
	words = append(words, f.How.LatentCache...)
	latents := f.latents()
	switch {
	case product && f.isProduct() && f.isFinite():
		words = slices.Concat(f.latentSteps(latents), words)
	case !product && bounds.AllFinite(latents): // steps that somebody chooses, as nothing tells the step
		for exponent := -10; exponent <= 3; exponent++ {
			if exponent != 0 {
				words = append(words, fmt.Sprintf("fp8:%v", math.Exp2(float64(exponent))))
			}
		}
		if most := largest(latents); most > 0 {
			for _, divided := range ":/*" { // in BF16 many numbers are near ties: a division and a product with the reciprocal tell
				words = append(words, fmt.Sprintf("fp8%c%v", divided, float32(most/mostE4M3)))
			}
		}
	}
	for _, to := range words {
		for _, rotated := range []string{to, "f32"} {
			undo := func(x *Trial) string {
				how := x.knownRounding()
				how.LatentCache, x.Causal = []string{to, rotated}, to != "fp8-tensor"
				if slices.Equal(how.LatentCache, f.How.LatentCache) {
					return ""
				}
				word := strings.NewReplacer("/", ":", "*", ":").Replace(to)
				said := fmt.Sprintf("the reference rounded latents to %s, as a cache of latents holds them", word)
				if rotated != to {
					said += ", and not the key's part with RoPE"
				}
				return said + clipped(latents, word) + ", and declares " + cmp.Or(strings.Join(f.How.LatentCache, ", "), "nothing")
			}
			list = append(list, mistake{id: "latent-cache", kinds: []string{f.kind()}, unless: "latent-cache", undo: undo})
		}
	}
	return list
}

// mostE4M3 is the largest number of E4M3.
const mostE4M3 = 448

// latents are what the failed layer's attention makes keys and values of; nil if the pack lacks them.
func (f *Failure) latents() []float32 {
	if f.Input != nil {
		return f.Input.Values
	}
	values, _ := f.Pack.Float32s(pack.StageOf(f.Layer, pack.InAttention(table.KVALayernorm)))
	return values
}

// largest returns the largest of the values, without their signs.
func largest(values []float32) (most float64) {
	for _, v := range values {
		most = max(most, math.Abs(float64(v)))
	}
	return most
}

// knownRounding returns what is changed of how a trial's engine computes. Roundings that were not recognised may have been
// a cache's: they are HuggingFace's.
func (x *Trial) knownRounding() *pack.Arithmetic {
	how := *x.How
	how.Rounding, x.How = maps.Clone(how.Rounding), &how
	maps.DeleteFunc(how.Rounding, func(_, way string) bool { return way == bounds.Unknown })
	return &how
}

// clipped says how many latents are beyond the largest number that E4M3 has in steps; "" if none are.
func clipped(latents []float32, to string) string {
	step := 1.0
	if of, stepped := strings.CutPrefix(to, "fp8:"); stepped {
		step, _ = strconv.ParseFloat(of, 64)
	} else if to != "fp8" {
		return ""
	}
	n := 0
	for _, v := range latents {
		if math.Abs(float64(v)) > mostE4M3*step {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of %s are beyond %g, the largest number there, and clipped", text.Grouped(n),
		text.Plural(len(latents), "number"), mostE4M3*step)
}

// latentSteps returns E4M3 in the steps with which the product of rounded latents is nearest to the golden, in some rows
// and columns; nil if none is near.
func (f *Failure) latentSteps(latents []float32) []string {
	w := f.loaded(f.module() + ".weight")
	if w == nil {
		return nil
	}
	plain := model.NewPlain(f.Options)
	defer plain.Close(nil)
	codes, _ := bounds.RoundingOf("fp8")
	n := f.Got.Width()
	var units [][]float32
	columns := indices(min(n, 4*sampledUnits))
	for i := range columns {
		columns[i] = i * n / len(columns)
		unit := w.Rows(columns[i], columns[i]+1)
		units = append(units, slices.Clone(plain.Values(&unit)))
	}
	rows, most := min(f.Got.Rows(), 2*sampledRows), largest(latents)
	// tried returns the sums of squares with a step: what is left, and the factor that brings the product nearest
	tried := func(step float64) (left, factor float64) {
		var s fit
		for r := range rows {
			x := slices.Clone(f.Input.Row(r))
			for i, v := range x {
				x[i] = float32(step * codes.Code(float64(v)/step))
			}
			for i, c := range columns {
				s.add(dot(x, units[i]), float64(f.Want[r*n+c]))
			}
		}
		return s.left(1), s.factor()
	}
	// E4M3 in twice the step rounds nearly alike, until numbers are too large or too small. A thousandth off a step one code
	// in a hundred is another one.
	best, least := 0.0, math.Inf(1)
	nearest := func(step float64) {
		if left, _ := tried(step); left < least {
			best, least = step, left
		}
	}
	const parts = 1024
	for part := -6 * parts; part < parts; part++ { // smaller steps clip numbers
		nearest(most / mostE4M3 * math.Exp2(float64(part)/parts))
	}
	for octave := range 2 {
		nearest(math.Exp2(math.Ceil(math.Log2(most/mostE4M3)) + float64(octave))) // numbers of BF16 are ties there
	}
	nearest(float64(float32(most / mostE4M3)))
	near := best
	for part := -100; part <= 100; part++ {
		nearest(near + float64(near*float64(part)*1e-5))
	}
	for range 4 {
		_, factor := tried(best)
		nearest(best * factor)
	}
	var ours fit
	for r := range rows {
		for _, c := range columns {
			ours.add(float64(f.Unrounded[r*n+c]), float64(f.Want[r*n+c]))
		}
	}
	if !(best > 0) || !(least <= mostLeft*ours.left(1)) {
		return nil
	}
	var words []string
	for octave := -4; octave <= 8; octave++ { // what is clipped, or too small, may be in other rows
		step := best * math.Exp2(float64(octave))
		if left, _ := tried(step); left > 1.5*least && octave != 0 || math.Abs(step-1) < 1e-4 {
			continue
		}
		for digits := 1; digits <= 4; digits++ { // as somebody would write it, if that is as near
			if v := written(step, digits); math.Abs(v/step-1) < 1e-4 {
				words = append(words, fmt.Sprintf("fp8:%v", v))
				break
			}
		}
		words = append(words, fmt.Sprintf("fp8:%v", float32(step)))
	}
	return words
}
