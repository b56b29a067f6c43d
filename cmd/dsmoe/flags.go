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

// number is a flag: a whole number, decimal whatever zeros it begins with, or hexadecimal
// behind 0x.
type number[T int | uint64] struct{ value *T }

// String returns the number.
func (n number[T]) String() string {
	if n.value == nil {
		return ""
	}
	return fmt.Sprint(*n.value)
}

// Set reads a number.
func (n number[T]) Set(word string) error {
	digits, base := strings.ToLower(word), 10
	if hex, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil || T(v) < 0 || uint64(T(v)) != v {
		return errors.New("not a whole number such as 7 or 0x2a")
	}
	*n.value = T(v)
	return nil
}

// Type names the flag's type in the help.
func (n number[T]) Type() string { return "number" }

// numberFlag adds a flag that sets *value, which holds its default.
func numberFlag[T int | uint64](flags *pflag.FlagSet, value *T, name, short, usage string) {
	flags.VarP(number[T]{value}, name, short, usage)
}

// overwriting is a flag: whether a finished output is replaced, and whether one with files that
// changed since is.
type overwriting struct{ finished, changed bool }

// String returns what Set reads.
func (o *overwriting) String() string {
	if o.changed {
		return "changed"
	}
	return strconv.FormatBool(o.finished)
}

// Set reads true, which the flag alone stands for, changed, or false.
func (o *overwriting) Set(word string) error {
	finished, err := strconv.ParseBool(word)
	*o = overwriting{finished, false}
	if word == "changed" {
		*o, err = overwriting{true, true}, nil
	}
	if err != nil {
		return errors.New("not changed")
	}
	return nil
}

// Type is that of a flag without a value.
func (o *overwriting) Type() string { return "bool" }

func (o *overwriting) completions() []string { return []string{"changed"} }

// overwriteFlag adds --overwrite to a command.
func overwriteFlag(cmd *cobra.Command, value *overwriting) {
	cmd.Flags().Var(value, "overwrite",
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

// weightType is a flag: the dtype of weights, or a mixture of types that a format has.
type weightType struct {
	dtype   tensor.DType
	mixture string
}

// Set reads a dtype, or a mixture's name.
func (t *weightType) Set(word string) error {
	d, ok := dtypeNamed(word)
	mixture := strings.ToLower(word)
	switch {
	case word == "keep", ok && d.Casts():
		*t = weightType{dtype: d}
	case mixture == "fp8":
		*t = weightType{dtype: tensor.FP8.Codes}
	case slices.Contains(checkpoint.Mixtures(), mixture):
		*t = weightType{mixture: mixture}
	default:
		return fmt.Errorf("not f32, f16, bf16, fp8 or keep, nor, for GGUF, %s", strings.Join(checkpoint.Mixtures(), ", "))
	}
	return nil
}

// String returns the dtype as the format spells it.
func (t *weightType) String() string {
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

// Type names the flag's values in the help.
func (t *weightType) Type() string { return "dtype" }

func (t *weightType) completions() []string {
	return append([]string{"bf16", "f16", "f32", "fp8", "keep"}, checkpoint.Mixtures()...)
}

// shardSize is a byteSize that can be none: no limit.
type shardSize int64

// Set reads a size, or none.
func (s *shardSize) Set(word string) error {
	if word == "none" {
		*s = -1
		return nil
	}
	var size byteSize
	if err := size.Set(word); err != nil {
		return err
	}
	*s = shardSize(size)
	return nil
}

// String returns what Set reads.
func (s *shardSize) String() string {
	switch {
	case *s < 0:
		return "none"
	case *s == 0: // what the format is used to
		return ""
	}
	size := byteSize(*s)
	return size.String()
}

// Type names the flag's type in the help.
func (s *shardSize) Type() string { return "size" }

func (s *shardSize) completions() []string { return []string{"5GB", "none"} }

// spansFlag is a flag: a set of layers, or of experts.
type spansFlag struct {
	value *text.Spans
	what  string // is in it: "layers"
}

// Set reads a set.
func (f spansFlag) Set(list string) (err error) {
	*f.value, err = text.ParseSpans(list, f.what)
	return err
}

// String returns what Set reads.
func (f spansFlag) String() string {
	if f.value == nil {
		return ""
	}
	return f.value.String()
}

// Type names the flag's values in the help.
func (f spansFlag) Type() string { return f.what }

// The rules by which synth draws the gates' weights.
const (
	syntheticGates = "synthetic"
	torchGates     = "torch"
)

// byteSize is a flag: a number of bytes with a unit, decimal as Hugging Face counts
// (1GB, or 1G, is 10^9), or binary (1GiB, or 1Gi, is 2^30).
type byteSize int64

// units are the units of a byteSize, the largest first.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	{"B", 1},
}

// String returns the size in the first unit that it is a multiple of.
func (s *byteSize) String() string {
	for _, u := range units {
		if *s > 0 && int64(*s)%u.bytes == 0 {
			return strconv.FormatInt(int64(*s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Set reads a size: 5GB, 5G, 5gb, 1.5GiB, 500000. What is less than a byte is dropped.
func (s *byteSize) Set(word string) error {
	digits := strings.TrimRight(word, "TGMKBtgmkbi ")
	unit, ok := unitBytes(strings.TrimLeft(word[len(digits):], " "))
	n, isNumber := new(big.Rat).SetString(digits)
	if !ok || !isNumber || strings.Trim(digits, "0123456789.") != "" {
		return errNoSize
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if whole.Sign() <= 0 || whole.BitLen() > 62 {
		return errNoSize
	}
	*s = byteSize(whole.Int64())
	return nil
}

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

// Type names the flag's type in the help.
func (s *byteSize) Type() string { return "size" }
