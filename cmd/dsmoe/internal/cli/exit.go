package cli

import "errors"

// The exit statuses, as cmp(1) has them.
const (
	ExitYes         = 0
	ExitNo          = 1
	ExitUnknown     = 2
	ExitInterrupted = 130
)

// ErrNo says that the command ran and that the answer, which its report has given,
// is no.
var ErrNo = errors.New("the answer is no")

// Answer turns the outcome of a command whose report was printed into its error.
func Answer(err error, yes bool) error {
	if err == nil && !yes {
		return ErrNo
	}
	return err
}

// exitStatus is the annotation of a command that explains its exit statuses.
const exitStatus = "exit status"

// ExitStatusTemplate ends the help of every command.
const ExitStatusTemplate = `
EXIT STATUS
{{with index .Annotations "` + exitStatus + `"}}{{.}}{{else}}  0    done{{end}}
  2    could not tell: bad input, a missing file, a wrong flag or argument
  130  interrupted
`

// Exits documents the exit statuses 0 and, where it is not empty, 1.
func Exits(yes, no string) map[string]string {
	statuses := "  0    " + yes
	if no != "" {
		statuses += "\n  1    " + no
	}
	return map[string]string{exitStatus: statuses}
}
