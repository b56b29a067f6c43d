package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/convert"
	"dsmoe/convert/remote"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Fail tells the user why a command has no answer.
func Fail(cmd *cobra.Command, args []string, err error, stdout, stderr io.Writer) {
	PrintError(stderr, err)
	if !AsksJSON(cmd, args) {
		return
	}
	var d ErrorDocument
	problems := faultsOf(err)
	d.Error.fault = problems[0]
	if len(problems) > 1 {
		cause := strings.TrimPrefix(err.Error(), text.Quote(problems[0].Thing)+": ")
		d.Error.fault = fault{Thing: problems[0].Thing, Cause: text.Line(cause)}
		d.Error.Problems = problems
	}
	if d.Error.Thing == "" {
		d.Error.Thing = cmd.Name()
	}
	d.Error.Hint = hintOf(err)
	_ = ErrorDocuments.write(stdout, d) // the exit status says it, too
}

// AsksJSON reports whether the command line asks for JSON, even if it makes no sense.
func AsksJSON(cmd *cobra.Command, args []string) bool {
	if f := cmd.Flags().Lookup("json"); f != nil && f.Changed {
		return f.Value.String() == "true"
	}
	if f := cmd.Flags().Lookup(outputFlag); f != nil && f.Changed {
		return f.Value.String() == jsonForm
	}
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	asked := false
	for _, arg := range args {
		if name, value, _ := strings.Cut(arg, "="); name == "--json" {
			asked, _ = strconv.ParseBool(cmp.Or(value, "true"))
		}
	}
	return asked
}

// faultsOf takes an error apart into its problems, at least one. A layer that wraps an
// error has put what it knows before it, "thing: …"; the innermost knows the cause.
func faultsOf(err error) []fault {
	switch e := err.(type) {
	case *problem.Error:
		return faults(e.Path, e.Problems)
	case *weights.MismatchError:
		return faults("", e.Problems())
	case *fs.PathError:
		return []fault{{Thing: e.Path, Cause: e.Err.Error()}}
	case interface{ Unwrap() []error }:
		var problems []fault
		for _, inner := range e.Unwrap() {
			problems = append(problems, faultsOf(inner)...)
		}
		return problems
	}
	inner := errors.Unwrap(err)
	if inner == nil {
		return []fault{{Cause: text.Line(err.Error())}}
	}
	problems := faultsOf(inner)
	before, ok := strings.CutSuffix(err.Error(), inner.Error())
	if !ok {
		return []fault{{Cause: text.Line(err.Error())}}
	}
	if before = strings.TrimSuffix(before, ": "); before == "" {
		return problems
	}
	if path := strings.TrimSuffix(strings.TrimPrefix(before, "'"), "'"); len(path) == len(before)-2 {
		before = path // as text.Word has it
	} else if whole, err := strconv.Unquote(before); err == nil {
		before = whole
	}
	for i, p := range problems {
		problems[i].Thing, problems[i].Coordinate = before, joinParts(p.Thing, p.Coordinate)
	}
	return problems
}

// faults are the problems of one thing.
func faults(thing string, problems []problem.Problem) (list []fault) {
	for _, p := range problems {
		list = append(list, fault{thing, p.Place(), text.Line(p.Cause), p.Hint})
	}
	return list
}

// PrintError writes the line that says why there is no answer, and the hint.
func PrintError(w io.Writer, err error) {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(w, "dsmoe:", text.Line(strings.Join(lines, "; ")))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintln(w, "hint:", text.Line(hint))
	}
}

// Named is an error about the file or checkpoint at path: "path: cause"; nil if err is nil.
func Named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", text.Quote(path), err)
}

// hintOf returns what the user can do about err, if anything is known.
func hintOf(err error) string {
	var known *hinted
	var bad *problem.Error
	var mismatch *weights.MismatchError
	var overflow *convert.OverflowError
	switch {
	case errors.As(err, &overflow):
		kept := "without --type they stay what they are"
		if overflow.DType == tensor.F16 {
			kept = "--type bf16 and f32 keep them"
		}
		return kept + ", with --no-resume; --allow-overflow writes infinities, and goes on from what is done"
	case errors.As(err, &known):
		return known.hint
	case errors.As(err, &mismatch):
		return "dsmoe inspect audit CHECKPOINT lists every finding"
	case errors.As(err, &bad):
		for _, p := range bad.Problems {
			if hint := cmp.Or(p.Hint, hintOf(p.Err)); hint != "" {
				return hint
			}
		}
	}
	if err != nil && (strings.Contains(err.Error(), `'\ufeff'`) || strings.Contains(err.Error(), `'\xff'`)) {
		return "not plain UTF-8: save the file as UTF-8 without a byte order mark (BOM)"
	}
	return ""
}

// WithHint returns err with what the user can do about it.
func WithHint(err error, hint string) error { return &hinted{err, hint} }

// hinted is an error, and what the user can do about it.
type hinted struct {
	error
	hint string
}

// Unwrap returns the error without its hint.
func (e *hinted) Unwrap() error { return e.error }

// Misuse says what is wrong with a command line.
func Misuse(cmd *cobra.Command, cause string) error {
	err := errors.New(cause)
	path := cmd.CommandPath()
	if _, sub, ok := strings.Cut(path, " "); ok {
		err = fmt.Errorf("%s: %w", sub, err)
	}
	return &hinted{err, path + " --help shows how it is used"}
}

// Together refuses flags that exclude each other, and names those that were given. A flag of yes or no that is set to
// its default, as by --json=false, counts as not given.
func Together(cmd *cobra.Command, _ []string) error {
	if cmd.Name() == cobra.ShellCompRequestCmd {
		unmarkUsages(cmd.Root())
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		f.Changed = f.Value.Type() != "bool" || f.Value.String() != f.DefValue
	})
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	_, list, _ := strings.Cut(err.Error(), "; [")
	given := strings.Fields("--" + strings.ReplaceAll(strings.TrimSuffix(list, "] were all set"), " ", " --"))
	last := len(given) - 1
	return Misuse(cmd, strings.Join(given[:last], ", ")+" and "+given[last]+": one of them")
}

// UnknownCommand says that word is no command below cmd, and which are near.
func UnknownCommand(cmd *cobra.Command, word string) string {
	cause := fmt.Sprintf("unknown command \"%s\"", text.Line(word))
	if near := nearCommands(cmd, word); near != "" {
		cause += ", is it " + near + "?"
	}
	return cause
}

// nearCommands names the commands below cmd that word may have been meant for.
func nearCommands(cmd *cobra.Command, word string) string {
	if word == "" {
		return "" // which every name begins with
	}
	cmd.SuggestionsMinimumDistance = min(2, max(1, len(word)-2)) // any words of three letters are near by 2
	names := cmd.SuggestionsFor(word)
	if cmd.HasParent() {
		for _, beside := range cmd.Parent().Commands() {
			if beside.Name() == word && beside != cmd && beside.IsAvailableCommand() {
				names = append(names, beside.CommandPath())
			}
		}
	}
	for _, sub := range cmd.Commands() {
		isNear := strings.HasPrefix(sub.Name(), word) || slices.Contains(sub.SuggestFor, word)
		if len(sub.Name()) > 2 && strings.HasPrefix(word, sub.Name()) && sub.IsAvailableCommand() && !slices.Contains(names, sub.Name()) {
			names = append(names, sub.Name())
		}
		if sub.IsAdditionalHelpTopicCommand() && isNear && len(word) > 2 {
			names = append(names, "help "+sub.Name())
		}
		for _, below := range sub.Commands() {
			if below.Name() == word && sub.IsAvailableCommand() {
				names = append(names, sub.Name()+" "+word)
			}
		}
	}
	return strings.Join(names, " or ")
}

// otherFlags are flags that a user knows of another tool or command, by the command that lacks them, "" for all, and
// what the command has in their places.
var otherFlags = map[string]map[string]string{
	"": {"threads": isThreads, "jobs": isThreads, "workers": isThreads},
	"convert": {"outtype": isType, "quantize": isType, "quantise": isType, "quant": isType, "dtype": isType, "outfile": isDST,
		"output": isDST, "dst": isDST, "src": ", is it SRC, the first argument?", "force": isOverwrite, "update": isOverwrite,
		"split-max-size": ", is it --max-shard-size?", "no-verify": ", is it --verify=false?",
		"resume": ": the same command continues an unfinished output by itself"},
	"synth": {"output": isDST, "force": isOverwrite, "size": ": CONFIG decides the size"},
	"golden": {"output": ", is it PACK, the argument behind CHECKPOINT?",
		"force": ": an existing PACK is not replaced; remove it", "prompt": ", is it --text?"},
	"verify": {"output": ", is it --html, --junit or --json?", "tolerance": areBounds, "tol": areBounds, "atol": areBounds,
		"rtol": areBounds, "device": onCPU, "gpu": onCPU},
	"diff":    {"tolerance": areClose, "tol": areClose, "atol": areClose, "rtol": areClose},
	"mem":     {"ctx": ", is it --context?", "gpu": ", is it --fit?", "vram": ", is it --fit?"},
	"routing": {"text": textFlag},
	"report":  {"text": textFlag, "output": ", is it --html?"},
}

const (
	textFlag    = ": --tokens takes a file; dsmoe help routing makes one of a text"
	isThreads   = ": GOMAXPROCS=4 in the environment sets the number of threads"
	onCPU       = ": dsmoe computes on the CPU"
	areClose    = ": values are close if rounding to the other side's dtype explains them; --exact wants equal ones"
	isType      = ", is it --type?"
	isDST       = ", is it DST, the argument behind SRC?"
	isOverwrite = ", is it --overwrite?"
	areBounds   = ": limits follow from rounding; --limit STAGE=FACTOR widens those of a stage"
)

// NearFlags asks, if err is about an unknown flag, which of cmd's it may have been meant for.
func NearFlags(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return ""
	}
	name := unknown.GetSpecifiedName()
	if ours := cmp.Or(otherFlags[cmd.Name()][name], otherFlags[""][name]); ours != "" {
		return ours
	}
	names := &cobra.Command{} // which knows how near names are
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := nearCommands(names, unknown.GetSpecifiedName()); near != "" {
		return ", is it --" + strings.ReplaceAll(near, " or ", " or --") + "?"
	}
	return ""
}

// ErrInterrupted is an interruption by the user.
var ErrInterrupted = errors.New("interrupted")

// Interruption says what an interrupted command left, and which command line continues it.
func Interruption(args []string, err error) error {
	var left *convert.Interrupted
	if !errors.As(err, &left) {
		return ErrInterrupted
	}
	where := "on disk"
	if remote.Is(left.Dir) {
		where = "so far"
	}
	cause := fmt.Errorf("%w: the unfinished output is in %s, %s %s", ErrInterrupted, text.Quote(left.Dir),
		text.Bytes(left.Bytes), where)
	how := " continues it"
	if left.Restart {
		how = " starts over"
	} else {
		args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "--no-resume") })
	}
	return &hinted{cause, CommandLine(append([]string{"dsmoe"}, args...)) + how}
}

// CommandLine is what to type in a shell for these words.
func CommandLine(words []string) string {
	unsafe := regexp.MustCompile(`[^\w@%+=:,./-]`) // in a shell's word
	quoted := slices.Clone(words)
	for i, word := range words {
		if word == "" || unsafe.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
