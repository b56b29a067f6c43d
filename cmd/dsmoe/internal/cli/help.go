package cli

// The flags in the help of a command: in groups, in lines of at most 80 columns.

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/text"
)

// Group is a group of flags, by its title in the help.
type Group string

// The groups, in the order of the help.
const (
	ownFlags  Group = "Flags" // those in no other group
	Tokens    Group = "Tokens"
	Selection Group = "Selection"
	Numbers   Group = "Numbers"
	GGUF      Group = "GGUF"
	Existing  Group = "Existing and unfinished outputs"
	Parts     Group = "Parts"
	Reporting Group = "Report"
	Resources Group = "Memory and servers"
)

const (
	groupNote  = "group" // annotation of a flag: its group
	flagsNote  = "flags" // annotation of a command: the lines of its help about flags
	ungrouped  = 8       // up to so many flags are one list
	helpWidth  = 80      // columns
	usageFlags = "{{if .HasAvailableLocalFlags}}\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}" +
		"{{if .HasAvailableInheritedFlags}}\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}"
	groupedFlags = "{{with index .Annotations \"" + flagsNote + "\"}}\n\n{{.}}{{end}}"
)

// InGroup puts flags into a group.
func InGroup(flags *pflag.FlagSet, g Group, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[groupNote] = []string{string(g)}
	}
}

// GroupFlags has the help of root, and of all commands below it, list flags by their groups, and fit a narrow terminal.
func GroupFlags(root *cobra.Command) {
	columns, help := helpWidth, root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var b strings.Builder
		out := cmd.OutOrStdout()
		if shown := columnsOf(out); shown > 0 {
			columns = min(columns, shown)
		}
		cmd.SetOut(&b)
		help(cmd, args)
		cmd.SetOut(out)
		io.WriteString(out, Narrow(out, b.String()))
	})
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), usageFlags, groupedFlags, 1))
	usage := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[flagsNote] = flagsInGroups(cmd, columns)
		return usage(cmd)
	})
}

// flagsInGroups lists the flags of a command, and those that it inherits, a heading above each group.
func flagsInGroups(cmd *cobra.Command, columns int) string {
	members, n := map[Group]*pflag.FlagSet{}, 0
	add := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		g := ownFlags
		if note := f.Annotations[groupNote]; note != nil {
			g = Group(note[0])
		}
		if members[g] == nil {
			members[g] = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		members[g].AddFlag(f)
		n++
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if n <= ungrouped {
		all := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, flags := range members {
			all.AddFlagSet(flags)
		}
		members = map[Group]*pflag.FlagSet{ownFlags: all}
	}
	var lists []string
	for _, g := range []Group{ownFlags, Tokens, Selection, Numbers, GGUF, Existing, Parts, Reporting, Resources} {
		if flags := members[g]; flags != nil {
			lists = append(lists, string(g)+":\n"+strings.TrimRight(flags.FlagUsagesWrapped(columns), "\n"))
		}
	}
	return strings.Join(lists, "\n\n")
}

// Narrow fits a help, whose lines have at most 80 columns, to a terminal with fewer: lines that are one sentence, because
// the next word had no room, are joined and cut anew.
func Narrow(w io.Writer, help string) string {
	columns := columnsOf(w)
	if columns == 0 || columns >= helpWidth {
		return help
	}
	var lines []string
	room := 0 // columns behind the last line
	for line := range strings.SplitSeq(strings.TrimSuffix(help, "\n"), "\n") {
		word, _, _ := strings.Cut(strings.TrimLeft(line, " "), " ")
		last := len(lines) - 1
		if n := utf8.RuneCountInString(word); n > room && last >= 0 && word != "" && room < helpWidth-1 {
			lines[last] += " " + strings.TrimLeft(line, " ")
		} else {
			lines = append(lines, line)
		}
		room = helpWidth - 1 - utf8.RuneCountInString(line)
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(strings.Join(text.Wrap(line, columns), "\n") + "\n")
	}
	return b.String()
}
