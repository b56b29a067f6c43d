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
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/remote"
	"dsmoe/text"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	signals = slices.DeleteFunc(signals, signal.Ignored) // as nohup has it
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // the first signal cleans up, a second one kills
	client := remote.NewClient()
	client.Headers = remote.DefaultHeaders()
	client.Waiting = func(why string) { printWaiting(os.Stderr, why) }
	os.Exit(run(ctx, client, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command line, with a client for its requests, and returns the exit status.
func run(ctx context.Context, client *remote.Client, args []string, stdout, stderr io.Writer) int {
	client.Context = ctx
	root := newRoot()
	args = hideSecrets(client, args)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	defer func() {
		if bytes, requests := client.Traffic(); requests > 0 {
			fmt.Fprintf(stderr, "note: %s were read in %s\n", text.Bytes(bytes), text.Plural(int(requests), "request"))
		}
	}()
	cmd, err := root.ExecuteContextC(context.WithValue(ctx, clientKey{}, client))
	var script scriptStatus
	switch {
	case err == nil:
		return cli.ExitYes
	case errors.Is(err, cli.ErrNo):
		return cli.ExitNo
	case errors.As(err, &script):
		return int(script)
	case errors.Is(err, errInconclusive), errors.As(err, new(*unwritten)):
		cli.PrintError(stderr, err)
		return cli.ExitUnknown
	case errors.Is(err, context.Canceled), ctx.Err() != nil: // a reader of a server may have worded it
		cli.Fail(cmd, args, cli.Interruption(args, err), stdout, stderr)
		return cli.ExitInterrupted
	default:
		cli.Fail(cmd, args, err, stdout, stderr)
		return cli.ExitUnknown
	}
}

// hideSecrets returns the arguments without users and queries of URLs, which may be passwords and signatures:
// what is printed of an argument shows none.
func hideSecrets(client *remote.Client, args []string) []string {
	hidden := slices.Clone(args)
	for i, arg := range args {
		flag, value, is := strings.Cut(arg, "=")
		if !is || !strings.HasPrefix(arg, "-") {
			flag, value, is = "", arg, false
		}
		if remote.Is(value) {
			if hidden[i] = client.Hide(value); is {
				hidden[i] = flag + "=" + hidden[i]
			}
		}
	}
	return hidden
}

// printWaiting writes why a server does not answer, over the progress bar of a terminal.
func printWaiting(w io.Writer, why string) {
	if cli.IsTerminal(w) {
		fmt.Fprint(w, "\r\x1b[K")
	}
	fmt.Fprintln(w, "note: "+text.Line(why))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dsmoe",
		Short: "Convert DeepSeekMoE checkpoints, and prove that the result is right",
		Long: `dsmoe verifies DeepSeekMoE checkpoints against golden tensors of the reference
Python, converts and compares them, tells what is in them and makes synthetic
ones.`,
		Example: `  dsmoe demo
  dsmoe verify dsmoe-demo/checkpoint dsmoe-demo/golden
  dsmoe convert dsmoe-demo/checkpoint f32 --type f32`,
		Version: version(),
		Args:    noCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cli.AsksJSON(cmd, args) {
				return cli.Misuse(cmd, "a command is missing")
			}
			return cmd.Help()
		},
		PersistentPreRunE: cli.Together,
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	cli.JSONFlag(root) // so that an error has a document
	root.Flags().MarkHidden("json")
	root.SetVersionTemplate("dsmoe {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root && root.Flags().NArg() > 0 { // an unknown command, whose flags are not known either
			return noCommand(root, root.Flags().Args())
		}
		cause := err.Error()
		if bad := new(pflag.InvalidValueError); errors.As(err, &bad) { // which doubles backslashes
			cause = strings.Replace(cause, strconv.Quote(bad.GetValue()), `"`+text.Line(bad.GetValue())+`"`, 1)
			cause, _, _ = strings.Cut(cause, "strconv.ParseBool")
			if strings.HasSuffix(cause, "flag: ") {
				cause += "not true or false"
			}
		}
		return cli.Misuse(cmd, cause+cli.NearFlags(cmd, err))
	})
	root.SetUsageTemplate(topicsTemplate.Replace(root.UsageTemplate()) + cli.ExitStatusTemplate)
	cli.GroupFlags(root)
	verify, inspect := newVerify(), newInspect()
	cli.AddColour(verify)
	cli.AddColour(inspect)
	convert, diff := newConvert(), newDiff()
	for _, cmd := range []*cobra.Command{verify, convert, inspect, diff} {
		cmd.PersistentFlags().Func("cache", "keep the weights that are read from a server in a `directory`",
			func(dir string) error {
				if remote.Is(dir) {
					return errors.New("not a directory on the disk")
				}
				clientOf(cmd.Root().Context()).Cache = dir
				return nil
			})
		cli.InGroup(cmd.PersistentFlags(), cli.Resources, "cache")
	}
	verify.SuggestFor = []string{"check", "validate", "test"}
	convert.SuggestFor = []string{"quantize", "quantise", "export"}
	inspect.SuggestFor = []string{"info", "show", "summary"}
	diff.SuggestFor = []string{"compare", "cmp"}
	root.AddCommand(verify, convert, inspect, diff, newSynth(), newGolden(), newGoldenScript(), newTraceScript(),
		newDemo(), newVersion(), newMan())
	addTopics(root)
	root.SetHelpCommand(newHelp())
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil { // it has none but commands below it
		completion.Args = noCommand
		completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cli.AddCompletion(root)
	return root
}

// noCommand refuses words that are no command.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return cli.Misuse(cmd, cli.UnknownCommand(cmd, args[0]))
}

// newHelp is the command help: what --help prints, by the name of the command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND|TOPIC]",
		Short: "Explain a command or a topic",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return cli.Misuse(topic, cli.UnknownCommand(topic, rest[0])) // whose --help lists topics, and the environment
			}
			if topic.Runnable() {
				topic.InitDefaultHelpFlag()
			}
			return topic.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion,
			_ cobra.ShellCompDirective) {
			if topic, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range documented(topic) {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
