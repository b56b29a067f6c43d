package cli

// The flags in the help of a command: in groups, in lines of at most 80 columns.

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// GroupFlags has the help of root, and of all commands below it, list flags by their groups.
func GroupFlags(root *cobra.Command) {
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), usageFlags, groupedFlags, 1))
	usage := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[flagsNote] = flagsInGroups(cmd)
		return usage(cmd)
	})
}

// flagsInGroups lists the flags of a command, and those that it inherits, a heading above each group.
func flagsInGroups(cmd *cobra.Command) string {
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
			lists = append(lists, string(g)+":\n"+strings.TrimRight(flags.FlagUsagesWrapped(helpWidth), "\n"))
		}
	}
	return strings.Join(lists, "\n\n")
}
