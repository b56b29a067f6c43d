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

// EnvironmentTitle heads the list of variables of the environment in the help of the root.
const EnvironmentTitle = "ENVIRONMENT"

// ExitStatusTemplate ends the help of every command, that of the root with the variables of the environment.
const ExitStatusTemplate = `
EXIT STATUS
{{with index .Annotations "` + exitStatus + `"}}{{.}}{{else}}  0    done{{end}}
  2    could not tell: bad input, a missing file, a wrong flag or argument
  130  interrupted
{{if not .HasParent}}
` + EnvironmentTitle + `
  NO_COLOR, FORCE_COLOR   no colours; colours without a terminal, too. --color
                          goes before both, NO_COLOR before FORCE_COLOR
  GOMAXPROCS, GOMEMLIMIT  number of threads; memory that is not exceeded without
                          need, such as 4GiB
  TMPDIR                  directory of temporary files
  XDG_CACHE_HOME          directory of caches (default ~/.cache)
  HF_HOME, HF_HUB_CACHE   caches of the hub on the disk
  HF_TOKEN                opens private models of the hub; HF_TOKEN_PATH is a
                          file with it
  HF_ENDPOINT             another hub
  HF_HUB_OFFLINE          1: only the caches on the disk are read
  AWS_PROFILE, …          settings of s3://, as the AWS CLI reads them;
                          AWS_ENDPOINT_URL is a store that is not Amazon's
  HTTPS_PROXY, NO_PROXY   proxy of requests; hosts without one
  SLURM_ARRAY_TASK_ID, …, JOB_COMPLETION_INDEX
                          the part of --part auto
{{end}}`

// Exits documents the exit statuses 0 and, where it is not empty, 1.
func Exits(yes, no string) map[string]string {
	statuses := "  0    " + yes
	if no != "" {
		statuses += "\n  1    " + no
	}
	return map[string]string{exitStatus: statuses}
}
