// Command standin behaves, as far as a runtime can tell, like alineod's
// bridge inside a sandbox: init, a child that listens, and dial.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alineod/alineod/internal/runtime"
)

func main() {
	if len(os.Args) < 3 || os.Args[1] != "bridge" {
		fail(errors.New("usage: standin bridge init|serve|dial|run"))
	}
	flags := flag.NewFlagSet("bridge", flag.ExitOnError)
	dir := flags.String("dir", "", "directory of the socket")
	for _, name := range []string{"sandbox", "home", "user", "workdir"} {
		flags.String(name, "", "as alineod has it")
	}
	flags.Parse(os.Args[3:])
	switch os.Args[2] {
	case "init":
		initProcess(*dir)
	case "serve":
		serve(*dir)
	case "dial":
		dial(*dir)
	case "run":
		code, err := runtime.RunCommand(flags.Args())
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(code)
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[2]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "standin:", err)
	os.Exit(1)
}

// initProcess keeps one server running for each USR1 it got, and reaps.
func initProcess(dir string) {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGCHLD)
	// The process may have been given no environment worth recording, but what
	// it was given is what the tests ask about.
	os.MkdirAll(filepath.Join(dir, "journal"), 0o755)
	os.WriteFile(filepath.Join(dir, "journal", "args"), fmt.Appendf(nil, "%q", os.Args[1:]), 0o644)
	child := start(dir)
	for sig := range sigs {
		switch sig {
		case syscall.SIGTERM:
			os.Exit(0)
		case syscall.SIGUSR1:
			syscall.Kill(child, syscall.SIGKILL)
			child = start(dir)
		case syscall.SIGCHLD:
			for {
				if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
					break
				}
			}
		}
	}
}

func start(dir string) int {
	cmd := exec.Command("/proc/self/exe", "bridge", "serve", "--dir", dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		fail(err)
	}
	return cmd.Process.Pid
}

func serve(dir string) {
	// Through the directory's descriptor: its path may be too long for a socket.
	if err := os.Chdir(dir); err != nil {
		fail(err)
	}
	os.Remove("bridge.sock")
	l, err := net.Listen("unix", "bridge.sock")
	if err != nil {
		fail(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			fail(err)
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func dial(dir string) {
	if err := os.Chdir(dir); err != nil {
		fail(err)
	}
	c, err := net.Dial("unix", "bridge.sock")
	if err != nil {
		fail(err)
	}
	go func() {
		io.Copy(c, os.Stdin)
		c.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(os.Stdout, c)
}
