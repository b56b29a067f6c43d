package main

// The values that flags take: what each reads, what it then says of itself, and which
// words the shell completes.

import (
	"errors"
	"fmt"
	"math/big"
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

// sameDType says whether two words name one dtype.
func sameDType(a, b string) bool {
	x, known := dtypeNamed(a)
	y, _ := dtypeNamed(b)
	return known && x == y
}

// value is a flag that sets *to, which holds its default: parse reads what show writes.
type value[T any] struct {
	to    *T
	kind  string // names the flag's values in the help
	parse func(word string) (T, error)
	show  func(T) string
	words []string // that the shell completes
}

// String shows the value.
func (v value[T]) String() string { return v.show(*v.to) }

// Set reads a value.
func (v value[T]) Set(word string) error {
	x, err := v.parse(word)
	if err == nil {
		*v.to = x
	}
	return err
}

// Type returns the kind.
func (v value[T]) Type() string { return v.kind }

func (v value[T]) completions() []string { return v.words }

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
func numberOf[T int | uint64](to *T) value[T] {
	return value[T]{to, "number", parseNumber[T], func(n T) string { return fmt.Sprint(n) }, nil}
}

// numberFlag adds a flag that takes a number.
func numberFlag[T int | uint64](flags *pflag.FlagSet, to *T, name, short, usage string) {
	flags.VarP(numberOf(to), name, short, usage)
}

// overwriting says whether a finished output is replaced, and whether one with files that changed
// since is.
type overwriting struct{ finished, changed bool }

// String returns what parseOverwriting reads.
func (o overwriting) String() string {
	if o.changed {
		return "changed"
	}
	return strconv.FormatBool(o.finished)
}

// parseOverwriting reads true, which the flag alone stands for, changed, or false.
func parseOverwriting(word string) (overwriting, error) {
	if word == "changed" {
		return overwriting{true, true}, nil
	}
	finished, err := strconv.ParseBool(word)
	if err != nil {
		err = errors.New("not changed")
	}
	return overwriting{finished, false}, err
}

// overwriteFlag adds --overwrite to a command.
func overwriteFlag(cmd *cobra.Command, to *overwriting) {
	cmd.Flags().Var(value[overwriting]{to, "bool", parseOverwriting, overwriting.String, []string{"changed"}}, "overwrite",
		"replace DST if it is a finished output of dsmoe; --overwrite=changed also if its files changed since")
	cmd.Flags().Lookup("overwrite").NoOptDefVal = "true"
}

// addCompletion tells the shell, for a command and those below it, what its arguments and
// the values of its flags can be.
func addCompletion(cmd *cobra.Command) {
	if cmd.HasParent() && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completeArguments(cmd.Use)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, done := cmd.GetFlagCompletionFunc(f.Name)
		var words []cobra.Completion
		switch v := f.Value.(type) {
		case interface{ completions() []string }:
			words = v.completions()
		default:
			done = done || f.Value.Type() == "string" || f.Value.Type() == "bool" // files, or nothing
		}
		if !done {
			cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, sub := range cmd.Commands() {
		addCompletion(sub)
	}
}

// completeArguments completes the arguments that a line of usage names: directories for
// those that are always one, files for others, and nothing behind the last.
func completeArguments(usage string) cobra.CompletionFunc {
	names := strings.Fields(usage)[1:]
	return func(_ *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case len(given) >= len(names):
			return nil, cobra.ShellCompDirectiveNoFileComp
		case names[len(given)] == "DST" || names[len(given)] == "GOLDEN":
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
}

// completeList completes words with commas between, each of which can be given once.
func completeList(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		given := strings.Split(typed, ",")
		before := strings.Join(append(given[:len(given)-1:len(given)-1], ""), ",")
		for _, w := range words {
			if !slices.Contains(given[:len(given)-1], w) {
				list = append(list, before+w)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// String returns the word that was taken.
func (c *choice) String() string { return c.value }

// Type names the flag's type in the help.
func (c *choice) Type() string { return "word" }

// Set takes one of the words, a dtype among them under any of its names.
func (c *choice) Set(word string) error {
	i := slices.IndexFunc(c.words, func(w string) bool { return w == word || sameDType(w, word) })
	if i < 0 {
		return fmt.Errorf("not one of %s", strings.Join(c.words, ", "))
	}
	c.value = c.words[i]
	return nil
}

func (c *choice) completions() []string { return c.words }

// weightType is the dtype of weights, or a mixture of types that a format has.
type weightType struct {
	dtype   tensor.DType
	mixture string
}

// parseWeightType reads a dtype, or a mixture's name.
func parseWeightType(word string) (t weightType, err error) {
	d, ok := dtypeNamed(word)
	mixture := strings.ToLower(word)
	switch {
	case word == "keep", ok && d.Casts():
		t.dtype = d
	case mixture == "fp8":
		t.dtype = tensor.FP8.Codes
	case slices.Contains(checkpoint.Mixtures(), mixture):
		t.mixture = mixture
	default:
		err = fmt.Errorf("not f32, f16, bf16, fp8 or keep, nor, for GGUF, %s", strings.Join(checkpoint.Mixtures(), ", "))
	}
	return t, err
}

// String returns the dtype as the format spells it.
func (t weightType) String() string {
	switch {
	case t.mixture != "":
		return t.mixture
	case t.dtype == tensor.Invalid:
		return "keep"
	case t.dtype.Scaled():
		return "fp8"
	}
	return t.dtype.String()
}

// typeFlag is a flag that takes a type of weights.
func typeFlag(to *weightType) value[weightType] {
	return value[weightType]{to, "dtype", parseWeightType, weightType.String,
		append([]string{"bf16", "f16", "f32", "fp8", "keep"}, checkpoint.Mixtures()...)}
}

// shardFlag is a flag that takes a size or none, -1; 0 is what the format is used to.
func shardFlag(to *int64) value[int64] {
	parse := func(word string) (int64, error) {
		if word == "none" {
			return -1, nil
		}
		return parseSize(word)
	}
	show := func(size int64) string {
		switch {
		case size < 0:
			return "none"
		case size == 0:
			return ""
		}
		return showSize(size)
	}
	return value[int64]{to, "size", parse, show, []string{"5GB", "none"}}
}

// spansFlag is a flag that takes a set of layers, or of experts.
func spansFlag(to *text.Spans, what string) value[text.Spans] {
	parse := func(list string) (text.Spans, error) { return text.ParseSpans(list, what) }
	return value[text.Spans]{to, what, parse, text.Spans.String, nil}
}

// The rules by which synth draws the gates' weights.
const (
	syntheticGates = "synthetic"
	torchGates     = "torch"
)

// sizeFlag is a flag that takes a number of bytes.
func sizeFlag(to *int64) value[int64] { return value[int64]{to, "size", parseSize, showSize, nil} }

// units are the units of sizes, the largest first: decimal as Hugging Face counts (1GB, or 1G, is 10^9), or
// binary (1GiB, or 1Gi, is 2^30).
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	{"B", 1},
}

// showSize returns a size in the first unit that it is a multiple of.
func showSize(size int64) string {
	for _, u := range units {
		if size > 0 && size%u.bytes == 0 {
			return strconv.FormatInt(size/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(size, 10)
}

// parseSize reads a size: 5GB, 5G, 5gb, 1.5GiB, 5000000. What is less than a byte is dropped. Less than leastPlain has a
// unit: 5 is hardly 5 bytes.
func parseSize(word string) (int64, error) {
	digits := strings.TrimRight(word, "TGMKBtgmkbi ")
	name := strings.TrimLeft(word[len(digits):], " ")
	unit, ok := unitBytes(name)
	n, isNumber := new(big.Rat).SetString(digits)
	if !ok || !isNumber || strings.Trim(digits, "0123456789.") != "" {
		return 0, errNoSize
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if whole.Sign() <= 0 || whole.BitLen() > 62 {
		return 0, errNoSize
	}
	if name == "" && whole.Int64() < leastPlain {
		return 0, fmt.Errorf("has no unit: write %sB for bytes, or KB, MB, GB in place of B", word)
	}
	return whole.Int64(), nil
}

// leastPlain is the least number of bytes that needs no unit: shards and memory have more.
const leastPlain = 1_000_000

var errNoSize = errors.New("not a size such as 5GB, 1.5GiB or 500MB")

// unitBytes returns what a unit stands for. A small b behind a large prefix is refused:
// Hugging Face takes 5Gb for bits.
func unitBytes(name string) (int64, bool) {
	if strings.HasSuffix(name, "b") && name != strings.ToLower(name) {
		return 0, false
	}
	full := strings.ToUpper(name)
	if !strings.HasSuffix(full, "B") {
		full += "B"
	}
	for _, u := range units {
		if strings.ToUpper(u.name) == full {
			return u.bytes, true
		}
	}
	return 0, false
}
