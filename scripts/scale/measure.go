//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"dsmoe/model/tensor"
)

// limits are what a command may take; 0 is no limit.
type limits struct {
	memory   int64       // bytes
	sent     int64       // bytes of files that the servers send
	requests int         // to both servers
	status   int         // exit status
	killed   func() bool // reports when the command is to be killed; nil lets it end
}

// measurement runs dsmoe.
type measurement struct {
	*servers
	ctx         context.Context
	dsmoe, work string
	failed      []error
}

// used is what a command took.
type used struct {
	output    string
	processor time.Duration
}

// run runs a command, prints what it took and holds it to its limits. What it prints goes to a file.
func (m *measurement) run(l limits, args ...string) used {
	m.forget()
	var stdout, stderr bytes.Buffer
	// GNU time forks from few pages: a process that exec replaced keeps the peak of the one that it was forked from.
	report := filepath.Join(m.work, "time")
	cmd := exec.CommandContext(m.ctx, "time", append([]string{"-o", report, "-f", "%M %U %S", m.dsmoe}, args...)...)
	cmd.Env = append(os.Environ(), m.environment...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	m.await(cmd, l.killed)
	took := time.Since(start)
	command := "dsmoe " + strings.Join(args, " ")
	var memory int64
	var user, system float64
	text, err := os.ReadFile(report)
	if err == nil {
		last := strings.TrimSpace(string(text))
		_, err = fmt.Sscan(last[strings.LastIndexByte(last, '\n')+1:], &memory, &user, &system) // after a line on its exit status
	}
	if err != nil {
		m.failed = append(m.failed, fmt.Errorf("%s: %w", command, err))
		return used{}
	}
	if l.killed != nil {
		l.status = 128 + int(syscall.SIGKILL) // as time says it
	}
	memory <<= 10
	processor := time.Duration((user + system) * float64(time.Second))
	requests, cut, sent := m.servers.hub.Traffic()
	more, cutMore, read := m.servers.store.Traffic()
	requests, cut, sent = requests+more, cut+cutMore, sent+read
	fmt.Printf("%-90s %8.1f s %8.1f s CPU %6d MB %7d requests %4d cut %10s\n", command, took.Seconds(), processor.Seconds(),
		memory/1e6, requests, cut, gigabytes(sent))
	fail := func(format string, args ...any) {
		m.failed = append(m.failed, fmt.Errorf(command+": "+format, args...))
	}
	if status := cmd.ProcessState.ExitCode(); status != l.status {
		fail("exit status %d, not %d: %s%s", status, l.status, stdout.String(), stderr.String())
	}
	if memory > l.memory {
		fail("%d bytes of memory, more than %d", memory, l.memory)
	}
	if l.sent > 0 && sent > l.sent {
		fail("%d bytes were sent, more than %d", sent, l.sent)
	}
	if l.requests > 0 && requests > l.requests {
		fail("%d requests, more than %d", requests, l.requests)
	}
	if cut*50 > requests {
		fail("%d of %d responses were cut, more than 2 %%", cut, requests)
	}
	return used{stdout.String(), processor}
}

// await runs a command; its exit status is dsmoe's. It kills dsmoe, the child of time, when killed says so.
func (m *measurement) await(cmd *exec.Cmd, killed func() bool) {
	if err := cmd.Start(); err != nil {
		return // its report is missing
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for killed != nil && !killed() {
		select {
		case <-ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	if killed != nil {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if pid, err := strconv.Atoi(strings.TrimSpace(string(children))); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	<-ended
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// headers runs what reads headers alone.
func (m *measurement) headers() {
	for _, p := range models {
		src := "hf://org/" + p.name
		l := limits{memory: 512 * mib, sent: int64(p.tensors) * 400, requests: 1000}
		for _, command := range []string{"inspect", "inspect ls", "inspect tree", "inspect audit", "inspect arch", "inspect mem"} {
			m.run(l, append(strings.Fields(command), src)...)
		}
		l.memory = 768 * mib
		for _, flags := range []string{"--type bf16", "--to gguf", "--to gguf --type q8_0", "--experts fused --type bf16"} {
			if p.name == "DeepSeek-V4-Flash" && strings.Contains(flags, "fused") {
				flags += " --names transformers"
			}
			m.run(l, append([]string{"convert", src, filepath.Join(m.work, "out"), "--dry-run"}, strings.Fields(flags)...)...)
		}
	}
}

// values reads all of DeepSeek-V3.
func (m *measurement) values() {
	n := m.bytes["DeepSeek-V3"]
	m.run(limits{memory: 512 * mib, sent: n + n/20, requests: 200_000}, "inspect", "audit", "--values", "hf://org/DeepSeek-V3")
}

// theLayer is a layer with experts of DeepSeek-V3, and about its bytes.
const (
	theLayer      = 30
	theLayerBytes = 11_650_000_000
)

// layer reads one layer of DeepSeek-V3.
func (m *measurement) layer() {
	l := limits{memory: 512 * mib, sent: theLayerBytes * 21 / 20, requests: 12_000}
	for _, command := range []string{"router", "hash", "stats", "experts"} {
		m.run(l, "inspect", command, "--layers", fmt.Sprint(theLayer), "hf://org/DeepSeek-V3")
	}
}

// verify verifies that layer with a pack of few tokens: a layer's chosen experts are in memory, since nothing of a server is
// mapped.
func (m *measurement) verify() {
	const tokens, expert = 8, 3 * 2048 * 7168
	src, dir := "hf://org/DeepSeek-V3", filepath.Join(m.work, "pack")
	forward, err := m.record(src, dir, theLayer, tokens, tensor.BF16)
	if err != nil {
		m.failed = append(m.failed, err)
		return
	}
	u := m.run(limits{memory: 8*tokens*expert + 2*gib, sent: theLayerBytes * 21 / 20, requests: 5000}, "verify", src, dir)
	if u.processor > 3*forward {
		m.failed = append(m.failed, fmt.Errorf("verify took %s, more than 3 × %s of a forward pass", u.processor, forward))
	}
}

// record records a pack while this process finds the servers as dsmoe does.
func (m *measurement) record(src, dir string, layer, tokens int, d tensor.DType) (time.Duration, error) {
	for _, line := range m.environment {
		name, value, _ := strings.Cut(line, "=")
		os.Setenv(name, value)
	}
	forward, err := record(src, dir, layer, tokens, d)
	fmt.Printf("%-90s %8s   %8.1f s CPU\n", fmt.Sprintf("a forward pass of layer %d, %d tokens, %s", layer, tokens, d), "", forward.Seconds())
	return forward, err
}

// store writes the dense layers to the store.
func (m *measurement) store() {
	m.resumed(1_760_000_000, 1_860_000_000, "convert", "hf://org/DeepSeek-V3", "s3://out/dense-Q8_0.gguf", "--type", "q8_0",
		"--include", "model.layers.[012].*")
}

// whole converts all of DeepSeek-V3.
func (m *measurement) whole() {
	src := "hf://org/DeepSeek-V3"
	m.resumed(m.bytes["DeepSeek-V3"], 713_281_294_336, "convert", src, "s3://out/DeepSeek-V3-Q8_0.gguf", "--type", "q8_0")
	m.parts(src)
}

// resumed runs a conversion that reads and writes so many bytes, kills it when the store has half of what is written, goes
// on with it, and compares the output with its manifest. The tensors that are not all in the store are read twice.
func (m *measurement) resumed(read, written int64, args ...string) {
	half := m.chunks.taken.Load() + written/2
	m.run(limits{memory: gib, sent: read, killed: func() bool { return m.chunks.taken.Load() >= half }}, args...)
	u := m.run(limits{memory: gib, sent: (read + written) * 21 / 20}, args...)
	if !strings.Contains(u.output, ", verified\n") || !strings.Contains(u.output, "resumed: ") {
		m.failed = append(m.failed, fmt.Errorf("not resumed and verified: %s", u.output))
	}
	m.run(limits{memory: gib, sent: written * 21 / 20}, "convert", "--check", args[2])
}

// parts converts one layer in 16 parts as an array of Slurm does, on the disk: 14 GB. Part 7 is killed, and runs again.
func (m *measurement) parts(src string) {
	dst := filepath.Join(m.work, "layer.gguf")
	args := []string{"convert", src, dst, "--type", "q8_0", "--layers", fmt.Sprint(theLayer)}
	part := func(i int) []string { return append(args[:len(args):len(args)], "--part", fmt.Sprintf("%d/16", i)) }
	for i := range 16 {
		if i+1 == 7 {
			m.run(limits{memory: gib, killed: func() bool { _, _, sent := m.servers.hub.Traffic(); return sent > 200_000_000 }}, part(7)...)
			m.run(limits{memory: gib, status: 2}, append(args[:len(args):len(args)], "--finish")...)
		}
		m.run(limits{memory: gib}, part(i+1)...)
	}
	m.run(limits{memory: gib}, append(args[:len(args):len(args)], "--finish")...)
	m.run(limits{memory: gib}, "convert", "--check", dst)
}
