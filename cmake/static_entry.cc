// Where a static position-independent program begins, before libc's own start: it has the pages that hold its relocated
// pointers filled by one call. Each of the 170 pages would else fault when libc relocates it, three microseconds a
// page. A kernel that does not know the request (before Linux 5.14) refuses it, and the pages fault as ever. Nothing is
// relocated yet and there is no stack protector: hence assembler. Registers are as exec left them: rdx is zero.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl tie_start
    .type tie_start, @function
tie_start:
    leaq __ehdr_start(%rip), %rdi
    movq 32(%rdi), %rax            # e_phoff
    movzwl 56(%rdi), %ecx          # e_phnum
    addq %rdi, %rax
1:  subl $1, %ecx
    jc 3f
    cmpl $0x6474e552, (%rax)       # PT_GNU_RELRO
    je 2f
    addq $56, %rax                 # the next program header
    jmp 1b
2:  addq 16(%rax), %rdi            # p_vaddr
    movq 40(%rax), %rsi            # p_memsz
    addq %rdi, %rsi
    andq $-4096, %rdi
    subq %rdi, %rsi
    movl $23, %edx                 # MADV_POPULATE_WRITE
    movl $28, %eax                 # madvise
    syscall
3:  xorl %edx, %edx
    jmp _start
    .size tie_start, . - tie_start
)");
#endif
