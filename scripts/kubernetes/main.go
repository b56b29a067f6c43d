// Kubernetes decodes the manifests of deploy/kubernetes strictly, and runs their containers as the Jobs would: in the
// image's root, where nothing but the mounted volumes can be written, as the pod's user, and with the index of each
// pod. The output has the bytes of one run.
//
//	go run . MANIFESTS ROOT
//
// ROOT holds dsmoe as the image does, and data/model. HF_ENDPOINT is a hub that serves the same as org/model.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	if err := check(os.Args[1], os.Args[2]); err != nil {
		log.Fatal("FAILED: ", err)
	}
}

func check(manifests, root string) error {
	var volume core.PersistentVolumeClaim
	var parts, finish batch.Job
	err := errors.Join(decode(manifests, "volume.yaml", &volume), decode(manifests, "parts.yaml", &parts),
		decode(manifests, "finish.yaml", &finish))
	if err != nil {
		return err
	}
	if err := compare(&volume, &parts, &finish); err != nil {
		return err
	}
	c := cluster{root, int(*parts.Spec.Completions), &parts.Spec.Template.Spec, &finish.Spec.Template.Spec}
	if err := c.mount(); err != nil {
		return err
	}
	for _, source := range []string{"/data/model", "hf://org/model"} {
		if err := c.convert(source); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		fmt.Printf("kubernetes: %d parts of %s: the bytes of one run\n", c.n, source)
	}
	if kept, _ := os.ReadDir(filepath.Join(root, "cache")); len(kept) == 0 {
		return errors.New("no header of the hub is in the cache")
	}
	return nil
}

// decode reads a manifest and refuses keys that its kind does not have.
func decode(manifests, name string, into any) error {
	text, err := os.ReadFile(filepath.Join(manifests, name))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// compare holds the manifests against each other: only --part, --parts and --finish differ, and N is the same.
func compare(volume *core.PersistentVolumeClaim, parts, finish *batch.Job) error {
	pod := parts.Spec.Template.DeepCopy()
	container := &pod.Spec.Containers[0]
	args, found := strings.CutSuffix(strings.Join(container.Args, "\n"),
		fmt.Sprintf("\n--part=auto\n--parts=%d", *parts.Spec.Completions))
	container.Args = append(strings.Split(args, "\n"), "--finish")
	switch {
	case !found:
		return errors.New("the arguments of parts.yaml do not end in --part=auto --parts=N, N being its completions")
	case !reflect.DeepEqual(pod, &finish.Spec.Template):
		return errors.New("finish.yaml is not parts.yaml with --finish")
	case pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != volume.Name:
		return errors.New("volume.yaml is not the volume of the Jobs")
	case *parts.Spec.CompletionMode != batch.IndexedCompletion || pod.Spec.RestartPolicy != core.RestartPolicyNever ||
		!*pod.Spec.SecurityContext.RunAsNonRoot || !*container.SecurityContext.ReadOnlyRootFilesystem:
		return errors.New("not an Indexed Job of pods that never restart, are not root and cannot write their root")
	}
	return nil
}

// cluster runs the pods of n parts and of the finish in the image's root.
type cluster struct {
	root          string
	n             int
	parts, finish *core.PodSpec
}

// mount makes the volumes, which the pods' group may write.
func (c cluster) mount() error {
	for _, v := range c.parts.Containers[0].VolumeMounts {
		path := filepath.Join(c.root, v.MountPath)
		err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, 0, int(*c.parts.SecurityContext.FSGroup)),
			os.Chmod(path, 0o2775))
		if err != nil {
			return err
		}
	}
	return nil
}

// convert converts a source in parts, whose last comes after a finish that has to fail, and in one run.
func (c cluster) convert(source string) error {
	const parts, one = "/data/parts", "/data/one"
	if err := c.indices(source, parts, c.n-1); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := c.run(c.finish, source, parts); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		return fmt.Errorf("finish without the last part: %w", err)
	}
	if _, err := os.Lstat(c.root + parts); err == nil {
		return errors.New("a finish without the last part leaves an output")
	}
	single := c.finish.DeepCopy()
	args := &single.Containers[0].Args
	*args = (*args)[:len(*args)-1]
	for _, step := range []func() error{
		func() error { return c.indices(source, parts, c.n) },
		func() error { return c.run(c.finish, source, parts) },
		func() error { return c.run(c.finish, source, parts) }, // a pod that was lost after it had published
		func() error { return c.run(single, source, one) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if text, err := exec.Command("diff", "-r", c.root+parts, c.root+one).CombinedOutput(); err != nil {
		return fmt.Errorf("%s%w", text, err)
	}
	if err := errors.Join(os.RemoveAll(c.root+parts), os.RemoveAll(c.root+one)); err != nil {
		return err
	}
	if left, _ := filepath.Glob(c.root + "/data/.*"); left != nil {
		return fmt.Errorf("%v: left behind", left)
	}
	return nil
}

// indices runs the first n parts at once.
func (c cluster) indices(source, output string, n int) error {
	problems := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			problems[i] = c.run(c.parts, source, output, fmt.Sprint("JOB_COMPLETION_INDEX=", i))
		})
	}
	group.Wait()
	return errors.Join(problems...)
}

// run runs a pod's container with another source and output, in the environment of the manifest and of its Job.
func (c cluster) run(pod *core.PodSpec, source, output string, environment ...string) error {
	container := pod.Containers[0]
	args := slices.Concat(container.Args[:1], []string{source, output}, container.Args[3:])
	cmd := exec.Command("/dsmoe", args...)
	cmd.Dir = "/"
	cmd.Env = append(environment, "HF_ENDPOINT="+os.Getenv("HF_ENDPOINT"))
	for _, v := range container.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	user := pod.SecurityContext
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root, Credential: &syscall.Credential{
		Uid: uint32(*user.RunAsUser), Gid: uint32(*user.RunAsGroup), Groups: []uint32{uint32(*user.FSGroup)}}}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v %v: %w\n%s", environment, args, err, text)
	}
	return nil
}
