package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// AddCompletion tells the shell, for a command and those below it, what its arguments and
// the values of its flags can be.
func AddCompletion(cmd *cobra.Command) {
	if cmd.HasParent() && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = CompleteArguments(cmd.Use)
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
		AddCompletion(sub)
	}
}

// unmarkUsages has the shell show what flags of a command, and of those below it, do without the marks that name their
// values in the help.
func unmarkUsages(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	}
	for _, sub := range cmd.Commands() {
		unmarkUsages(sub)
	}
}

// CompleteArguments completes the arguments that a line of usage names: directories for
// those that are always one, files for others, and nothing behind the last.
func CompleteArguments(usage string) cobra.CompletionFunc {
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

// CompleteList completes a list of words, separated by commas, each at most once.
func CompleteList(words ...string) cobra.CompletionFunc {
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
