// Command dsmoe converts DeepSeekMoE checkpoints and proves that the result is
// right. Each command is a file of its own: flags become Options, one call of the
// library does the work, the report is printed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal cleans up, a second one kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// The exit statuses, those of cmp(1).
const (
	exitYes         = 0
	exitNo          = 1
	exitUnknown     = 2
	exitInterrupted = 130
)

// errNo says that the command ran and that the answer, which its report has given,
// is no.
var errNo = errors.New("the answer is no")

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, context.Canceled):
		printError(stderr, errors.New("interrupted"))
		return exitInterrupted
	default:
		printError(stderr, err)
		return exitUnknown
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dsmoe",
		Short: "Convert DeepSeekMoE checkpoints, and prove that the result is right",
		Long: `dsmoe verifies DeepSeekMoE checkpoints against golden tensors of the reference
implementation, converts and compares them, tells what is in them and makes synthetic
ones.`,
		Example: `  dsmoe verify  CHECKPOINT GOLDEN    compare every stage with the reference's tensors
  dsmoe convert SRC DST              write another dtype, shard size or expert layout
  dsmoe inspect CHECKPOINT           say what is in a checkpoint
  dsmoe diff    A B                  compare two checkpoints tensor by tensor
  dsmoe synth   CONFIG DST           write a synthetic checkpoint of any size`,
		Version:       version(),
		Args:          noCommand,
		RunE:          func(*cobra.Command, []string) error { return nil },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("dsmoe {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return misuse(cmd, err.Error()) })
	root.SetUsageTemplate(root.UsageTemplate() + exitStatusTemplate)
	root.AddCommand(newVerify(), newConvert(), newInspect(), newDiff(), newSynth())
	return root
}

// noCommand is what is wrong when the root command itself is about to run.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return misuse(cmd, "a command is missing")
	}
	cause := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		cause += ", is it " + strings.Join(near, " or ") + "?"
	}
	return misuse(cmd, cause)
}

// version says which build this is: the module's version, which names the commit,
// and the compiler.
func version() string {
	build := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok {
		build = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				build += ", revision " + s.Value
			}
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", build, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
