package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
)

// newMan is a command for those who package dsmoe.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages, one for each command and topic",
		Hidden: true,
		Args:   cli.Expect("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			return writeManual(cmd.Root(), args[0])
		},
	}
}

// writeManual writes the pages of a command and of what is below it into dir.
func writeManual(cmd *cobra.Command, dir string) error {
	name, section := manualPage(cmd)
	file := filepath.Join(dir, name+"."+section)
	if err := os.WriteFile(file, []byte(manual(cmd)), 0o666); err != nil {
		return err
	}
	for _, sub := range documented(cmd) {
		if err := writeManual(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// documented returns the commands and topics below a command that help lists.
func documented(cmd *cobra.Command) (list []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			list = append(list, sub)
		}
	}
	return list
}

// manualPage returns the name and the section of the page of a command, or of a topic.
func manualPage(cmd *cobra.Command) (name, section string) {
	section = "1"
	if cmd.IsAdditionalHelpTopicCommand() {
		section = "7"
	}
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-"), section
}

// manual is the help of a command or a topic as a manual page: its lines as they are, the headings of its usage
// as those of sections.
func manual(cmd *cobra.Command) string {
	name, section := manualPage(cmd)
	name = roff(name)
	page := fmt.Sprintf(".TH %s %s \"\" dsmoe\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n",
		strings.ToUpper(name), section,
		name, roff(cmd.Short))
	for line := range strings.SplitSeq(strings.TrimSpace(cmd.Long), "\n") {
		page += roff(line) + "\n"
	}
	if section == "1" {
		cmd.InitDefaultHelpFlag()
		for line := range strings.SplitSeq(strings.TrimSpace(cmd.UsageString()), "\n") {
			title, heading := strings.CutSuffix(line, ":")
			if heading && !strings.HasPrefix(line, " ") || line == "EXIT STATUS" || line == cli.EnvironmentTitle {
				page += ".fi\n.SH " + strings.ToUpper(title) + "\n.nf\n"
			} else {
				page += roff(line) + "\n"
			}
		}
	}
	page += ".fi\n.SH SEE ALSO\n"
	related := documented(cmd)
	if cmd.HasParent() {
		related = append(related, cmd.Parent())
	}
	for _, r := range related {
		name, section := manualPage(r)
		page += fmt.Sprintf(".BR %s (%s)\n", roff(name), section)
	}
	return page
}

// roff is a line of text as the formatter of manual pages takes it: no character commands anything.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}
