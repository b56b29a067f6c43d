package cli

// The values that flags take: what each reads, what it then says of itself, and which
// words the shell completes.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// dtypeNamed returns the dtype that a user calls word, by any of the names that it has in
// torch, numpy and Hugging Face, in any case: bf16, bfloat16, torch.bfloat16.
func dtypeNamed(word string) (tensor.DType, bool) {
	switch strings.TrimPrefix(strings.ToLower(word), "torch.") {
	case "f64", "fp64", "float64", "double":
		return tensor.F64, true
	case "f32", "fp32", "float32", "float":
		return tensor.F32, true
	case "f16", "fp16", "float16", "half":
		return tensor.F16, true
	case "bf16", "bfloat16":
		return tensor.BF16, true
	}
	return tensor.Invalid, false
}

// Value is a flag that sets *to, which holds its default: parse reads what show writes.
type Value[T any] struct {
	to    *T
	kind  string // names the flag's values in the help
	parse func(word string) (T, error)
	show  func(T) string
	words []string // that the shell completes
}

// ValueOf returns a flag that sets *to: parse reads what show writes, and words are what the shell completes.
func ValueOf[T any](to *T, kind string, parse func(word string) (T, error), show func(T) string,
	words ...string) Value[T] {
	return Value[T]{to, kind, parse, show, words}
}

// String shows the value.
func (v Value[T]) String() string { return v.show(*v.to) }

// Set reads a value.
func (v Value[T]) Set(word string) error {
	x, err := v.parse(word)
	if err == nil {
		*v.to = x
	}
	return err
}

// Type returns the kind.
func (v Value[T]) Type() string { return v.kind }

func (v Value[T]) completions() []string { return v.words }

// parseNumber reads a whole number, decimal whatever zeros it begins with, or hexadecimal behind 0x.
func parseNumber[T int | uint64](word string) (T, error) {
	digits, base := strings.ToLower(word), 10
	if hex, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil || T(v) < 0 || uint64(T(v)) != v {
		return 0, errors.New("not a whole number such as 7 or 0x2a")
	}
	return T(v), nil
}

// numberOf is a flag that takes a number.
func numberOf[T int | uint64](to *T) Value[T] {
	return Value[T]{to, "number", parseNumber[T], func(n T) string { return fmt.Sprint(n) }, nil}
}

// NumberFlag adds a flag that takes a number.
func NumberFlag[T int | uint64](flags *pflag.FlagSet, to *T, name, short, usage string) {
	flags.VarP(numberOf(to), name, short, usage)
}

// WordFlag is a flag that takes one of a few words, a dtype among them under any of its names.
func WordFlag[T ~string](to *T, words ...T) Value[T] {
	var list []string
	for _, w := range words {
		list = append(list, string(w))
	}
	parse := func(word string) (T, error) {
		dtype, known := dtypeNamed(word)
		i := slices.IndexFunc(list, func(w string) bool {
			d, is := dtypeNamed(w)
			return w == word || known && is && d == dtype
		})
		if i < 0 {
			return "", fmt.Errorf("not one of %s%s", strings.Join(list, ", "), near(word, list))
		}
		return words[i], nil
	}
	return Value[T]{to, "word", parse, func(word T) string { return string(word) }, list}
}

// SpansFlag is a flag that takes a set of layers, or of experts.
func SpansFlag(to *text.Spans, what string) Value[text.Spans] {
	parse := func(list string) (text.Spans, error) { return text.ParseSpans(list, what) }
	return Value[text.Spans]{to, what, parse, text.Spans.String, nil}
}

// Overwriting is which finished outputs are replaced: none, those that are unchanged, or also those whose files
// changed since.
type Overwriting struct{ Finished, Changed bool }

// String returns what parseOverwriting reads.
func (o Overwriting) String() string {
	if o.Changed {
		return "changed"
	}
	return strconv.FormatBool(o.Finished)
}

// parseOverwriting reads true, which the flag alone stands for, changed, or false.
func parseOverwriting(word string) (Overwriting, error) {
	if word == "changed" {
		return Overwriting{true, true}, nil
	}
	finished, err := strconv.ParseBool(word)
	if err != nil {
		err = errors.New("not true, false or changed")
	}
	return Overwriting{finished, false}, err
}

// OverwriteFlag adds --overwrite to a command.
func OverwriteFlag(cmd *cobra.Command, to *Overwriting) {
	cmd.Flags().Var(Value[Overwriting]{to, "bool", parseOverwriting, Overwriting.String, []string{"changed"}}, "overwrite",
		"replace DST if it is a finished output of dsmoe; --overwrite=changed also if its files changed since")
	cmd.Flags().Lookup("overwrite").NoOptDefVal = "true"
}

// Limits is the flag --limit.
type Limits map[string]float64

// Type names the flag's type in the help.
func (l Limits) Type() string { return "STAGE=FACTOR" }

// String lists the limits.
func (l Limits) String() string {
	var parts []string
	for _, stage := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, fmt.Sprintf("%s=%g", stage, l[stage]))
	}
	return strings.Join(parts, ",")
}

// Set adds STAGE=FACTOR.
func (l Limits) Set(setting string) error {
	stage, number, ok := strings.Cut(setting, "=")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || stage == "" || !(v > 0) || math.IsInf(v, 0) {
		return errors.New("not STAGE=FACTOR, such as mlp.output=2")
	}
	l[stage] = v
	return nil
}

// WeightType is the dtype of weights, or a mixture of types that a format has.
type WeightType struct {
	DType   tensor.DType
	Mixture string
}

// parseWeightType reads a dtype, or a mixture's name.
func parseWeightType(word string) (t WeightType, err error) {
	d, ok := dtypeNamed(word)
	mixture := strings.ToLower(word)
	switch {
	case word == "keep", ok && d.Casts():
		t.DType = d
	case mixture == "fp8":
		t.DType = tensor.FP8.Codes
	case slices.Contains(checkpoint.Mixtures(), mixture):
		t.Mixture = mixture
	case slices.Contains(checkpoint.Mixtures(), mixture+"_m"): // llama.cpp's q4_k is q4_k_m
		t.Mixture = mixture + "_m"
	default:
		err = fmt.Errorf("not f32, f16, bf16, fp8 or keep, nor, for GGUF, %s%s", strings.Join(checkpoint.Mixtures(), ", "),
			near(word, typeWords()))
	}
	return t, err
}

// String returns the dtype as the format spells it.
func (t WeightType) String() string {
	switch {
	case t.Mixture != "":
		return t.Mixture
	case t.DType == tensor.Invalid:
		return "keep"
	case t.DType.Scaled():
		return "fp8"
	}
	return t.DType.String()
}

// TypeFlag is a flag that takes a type of weights.
func TypeFlag(to *WeightType) Value[WeightType] {
	return Value[WeightType]{to, "dtype", parseWeightType, WeightType.String, typeWords()}
}

// typeWords are the types of weights, a dtype by one of its names.
func typeWords() []string {
	return append([]string{"bf16", "f16", "f32", "fp8", "keep"}, checkpoint.Mixtures()...)
}

// near asks which of words a user meant who wrote another: those that begin with the same letters and digits, at
// least two, as far as any does. Case, - and _ do not count: q4km is near q4_k_m.
func near(word string, words []string) string {
	bare := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	most, found := 2, []string(nil)
	for _, w := range words {
		a, b, n := bare(word), bare(w), 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		if n > most {
			most, found = n, nil
		}
		if n == most {
			found = append(found, w)
		}
	}
	if found == nil {
		return ""
	}
	return ": is it " + strings.Join(found, " or ") + "?"
}

// NumbersFlag adds a flag that takes numbers with commas between; given again, it takes more.
func NumbersFlag(flags *pflag.FlagSet, to *[]int, name, usage string) {
	flags.Var(&numbers{to: to}, name, usage)
}

// numbers is a flag that takes numbers; the first that are given replace the default.
type numbers struct {
	to    *[]int
	given bool
}

// Type names the flag's values in the help.
func (n *numbers) Type() string { return "numbers" }

// String lists the numbers.
func (n *numbers) String() string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(*n.to)), ","), "[]")
}

// Set reads numbers. Of a number with k it asks whether it is so many times 1,024, which is how contexts are counted.
func (n *numbers) Set(list string) error {
	var all []int
	if n.given {
		all = *n.to
	}
	for one := range strings.SplitSeq(list, ",") {
		x, err := parseNumber[int](strings.TrimSpace(one))
		if err != nil {
			k, isK := strings.CutSuffix(strings.ToLower(one), "k")
			if thousands, bad := parseNumber[int](k); isK && bad == nil && thousands < 1<<20 {
				err = fmt.Errorf("%s is not a whole number: is it %d?", text.Quote(one), thousands<<10)
			}
			return err
		}
		all = append(all, x)
	}
	*n.to, n.given = all, true
	return nil
}
